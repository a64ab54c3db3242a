"""The service: one model, loaded once, that answers many at a time over HTTP."""
