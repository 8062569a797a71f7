"""Workloads: nodes, pods and jobs from traces, histories and generators."""
