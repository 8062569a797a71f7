"""The reader process, and the service's client of it."""
