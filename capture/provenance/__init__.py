"""Provenance: which rank of which run this is, and what it runs: code, packages, seeds, topology."""
