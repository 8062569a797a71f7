"""Dynamic resource allocation: published devices, claims and allocations."""
