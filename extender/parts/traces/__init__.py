"""OpenTelemetry traces of the verbs: docs/parts/traces.md."""
