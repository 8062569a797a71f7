"""OpenTelemetry traces of kube-scheduler's requests: docs/parts/traces.md."""
