"""The demo's cluster and metrics."""
