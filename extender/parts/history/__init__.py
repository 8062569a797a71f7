"""The history of the cluster, kept to learn from: docs/parts/history.md."""
