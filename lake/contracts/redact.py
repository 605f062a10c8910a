"""The documented place of `redact`, which lives in `ranklake.redaction`."""

from ranklake.redaction.redact import redact

__all__ = ["redact"]
