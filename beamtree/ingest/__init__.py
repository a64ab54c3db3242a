"""What users bring: logs of any kind, read by Polars into prepared folders; items, trees, and a made-up market."""
