"""The node agent: tells which GPUs the kubelet really gave, and leads NVIDIA's plugin to those that Kerf chose."""
