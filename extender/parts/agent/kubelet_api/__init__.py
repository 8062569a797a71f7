"""The kubelet's protobuf definitions of its device APIs, and the modules that `make protos` generates from them."""
