"""NVIDIA's driver for dynamic resource allocation (DRA): GPUs that kube-scheduler allocates to ResourceClaims."""
