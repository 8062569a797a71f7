// The HTTP API, shown by Swagger UI from the service's own description.

// Without the badge of a validator, which would be asked of a server of theirs.
SwaggerUIBundle({ url: 'openapi.json', dom_id: '#api', deepLinking: true, validatorUrl: null });
