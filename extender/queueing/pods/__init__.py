"""Pods of the queue: what is read from them, their stages, and what is written on them."""
