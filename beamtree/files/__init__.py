"""Atomic writes, locks and checksums."""
