"""Admission webhooks for pods: docs/parts/webhook.md."""
