"""The HTTP service: verbs, routes, webhooks, access and the server."""
