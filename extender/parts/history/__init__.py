"""Records the history of the cluster's pods and nodes: docs/parts/history.md."""
