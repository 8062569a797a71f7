"""kubeconfigs, read by the rules of client-go: which cluster is meant, and who asks it."""
