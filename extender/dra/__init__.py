"""Dynamic resource allocation: what drivers publish, what claims ask, and who has which device."""
