"""Masks of values: hashed, kept in part, redacted, rounded, or NULL."""
