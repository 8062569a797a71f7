"""Simulations of clusters: replays, episodes and discrete events."""
