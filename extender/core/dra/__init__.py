"""Dynamic resource allocation: devices that drivers publish, what claims ask of them, and which they may have."""
