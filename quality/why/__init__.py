"""What rows that fail a check have in common: which host, rank, run, version or hour explains a failure best."""
