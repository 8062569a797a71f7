"""Settings: flags, environment and file."""
