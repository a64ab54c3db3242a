"""The service over HTTP: routes, schemas, middleware."""
