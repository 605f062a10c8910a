"""Provenance: finds out rank and run of this process, and its code, packages, seeds and topology."""
