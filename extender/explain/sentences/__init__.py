"""One sentence for a pod: what keeps it pending and what helps, or why it is there and not on the next best node."""
