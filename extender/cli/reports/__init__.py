"""Commands that report on a time."""
