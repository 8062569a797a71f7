"""The client of a running Kerf, used by commands."""
