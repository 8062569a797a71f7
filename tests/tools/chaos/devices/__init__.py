"""Pools of devices that Kerf owns and pods with ResourceClaims in a run: planned, made, broken and judged."""
