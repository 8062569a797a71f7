"""One sentence for a pod: why it is pending and what would help, or why it is on its node and not the next best."""
