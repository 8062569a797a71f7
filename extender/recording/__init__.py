"""Keeping the history of the cluster that Kerf serves."""
