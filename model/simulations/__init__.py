"""Clusters over time, and what is placed on them."""
