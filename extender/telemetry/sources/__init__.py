"""Sources of telemetry samples."""
