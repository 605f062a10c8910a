"""Explanations of failing rows: the host, rank, run, version or hour that they have in common."""
