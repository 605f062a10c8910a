"""Redaction: replaces text that looks like a credential before it is recorded."""
