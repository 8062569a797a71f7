"""Nodes on which pods fail, told of or kept from new pods for a while: docs/parts/set_aside.md."""
