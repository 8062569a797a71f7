"""Admission webhooks: what is written on pods as they are created."""
