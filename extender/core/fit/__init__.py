"""What fits where, and why not."""
