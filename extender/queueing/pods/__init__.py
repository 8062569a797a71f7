"""A pod of the queue: what is read of it, its stage, and what is written on it."""
