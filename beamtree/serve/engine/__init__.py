"""The engine behind the service, which knows nothing of HTTP: batching, load control, the model in use."""
