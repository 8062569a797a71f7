"""Pods without a node: who they are, why they wait, and what wakes them."""
