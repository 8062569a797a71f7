"""Telemetry: what GPUs are really doing, read off the scheduling path, with the age of every sample."""
