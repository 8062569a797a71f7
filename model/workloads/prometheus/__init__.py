"""A cluster's history from Prometheus: pods and nodes as reported by kube-state-metrics."""
