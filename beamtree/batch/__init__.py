"""Recommendations for files of histories, in this process or on a Ray cluster."""
