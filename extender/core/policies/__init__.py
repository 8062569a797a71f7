"""Policies: how nodes that fit are ranked."""
