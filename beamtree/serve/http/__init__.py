"""The HTTP service: routes, schemas, middleware, and the server."""
