"""Masks: how a value is shown to those who must not see it: hashed, kept in part, redacted, coarser, or as NULL."""
