"""Device plugins: how each writes a node's GPUs and a pod's devices."""
