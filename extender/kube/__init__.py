"""Kubernetes: the client, objects, watches, leases and events."""
