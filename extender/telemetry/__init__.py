"""Telemetry: the actual use of GPUs, read outside the scheduling path, with the age of every sample."""
