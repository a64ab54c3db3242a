"""Searches for many callers: batches, load, and the model in use."""
