"""The node agent: tells which GPUs the kubelet really gave, and leads the vendor's plugin to those that Kerf chose."""
