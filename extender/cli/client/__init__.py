"""A running Kerf, as commands ask it."""
