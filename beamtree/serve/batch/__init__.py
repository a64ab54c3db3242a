"""Logs and users in bulk, on Ray: a local cluster, or one that is there already."""
