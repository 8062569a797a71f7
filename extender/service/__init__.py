"""What users meet: the HTTP service, its wire format, settings, metrics, and the command line."""
