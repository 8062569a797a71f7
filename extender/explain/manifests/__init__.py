"""Reads manifests of workloads: which pods each creates, and which of these form a gang."""
