"""Idle GPUs that the pods which are likely to come can't use."""
