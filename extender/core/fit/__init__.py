"""Checks of requests against nodes, and why they fail."""
