"""The HTTP server: connections, TLS, and access control."""
