"""Kerf: a kube-scheduler extender that puts GPU pods on the right GPUs.

Rooms, from the inside out; imports only point inwards (checked by import-linter):
`core` (pure arrays), `cluster` (Kubernetes), `service` (HTTP, settings, command line).
"""

__version__ = "0.1.0"
