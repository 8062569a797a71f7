"""Why a pod is where it is, or waits, and what would change that."""
