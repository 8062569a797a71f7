"""A cluster's past from Prometheus: what kube-state-metrics told of pods and nodes."""
