"""Pods without room that are let go for autoscalers to see: docs/parts/autoscaling.md."""
