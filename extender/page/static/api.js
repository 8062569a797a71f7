// The HTTP API, shown by Swagger UI from the service's own description.

// No validator badge: it would be loaded from an external server.
SwaggerUIBundle({ url: 'openapi.json', dom_id: '#api', deepLinking: true, validatorUrl: null });
