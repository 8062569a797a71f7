"""The kubelet's own definitions of its interfaces for devices, and the modules that `make protos` writes of them."""
