"""What was asked of a cluster and what became of it, kept to learn from."""
