"""The pending queue: which pods wait, whose turn it is, and how they are let go for the nodes planned."""
