"""A folder that holds a model."""
