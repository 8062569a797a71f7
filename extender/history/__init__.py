"""Recording a cluster's pods and nodes over time, for training and analysis."""
