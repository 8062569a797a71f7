"""Kubernetes: objects, the watch that feeds one writer, the ledger of who holds which GPU, and bindings."""
