"""The process that reads telemetry, and the way it is spoken to."""
