"""The HTTP server: connections, TLS, and who may call what."""
