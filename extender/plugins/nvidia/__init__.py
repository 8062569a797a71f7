"""Device plugins for NVIDIA's GPUs that say more than the kubelet does."""
