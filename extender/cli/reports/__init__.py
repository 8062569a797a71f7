"""Commands that report: on a time, or on who waits."""
