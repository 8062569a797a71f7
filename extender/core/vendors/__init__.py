"""Makers of GPUs: what each writes on nodes, asks by, publishes and measures. Kerf knows no more of them than this."""
