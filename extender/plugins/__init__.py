"""Device plugins: their formats of a node's GPUs and a pod's devices."""
