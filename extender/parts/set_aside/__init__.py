"""Reports or quarantines nodes on which pods fail: docs/parts/set_aside.md."""
