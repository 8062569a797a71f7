"""Releases queued pods that fit no node, so that autoscalers see them: docs/parts/autoscaling.md."""
