"""Which nodes are missing, worked out while pods wait for long: docs/parts/missing.md."""
