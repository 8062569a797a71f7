"""Prometheus metrics and traces."""
