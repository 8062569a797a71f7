"""Device plugins for NVIDIA's GPUs that publish more than the kubelet does."""
