"""The pending queue: it orders waiting pods, plans their nodes, and releases them."""
