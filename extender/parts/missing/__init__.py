"""Finds the new nodes that long-pending pods need: docs/parts/missing.md."""
