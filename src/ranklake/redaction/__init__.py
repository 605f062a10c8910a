"""Redaction: what looks like a credential is replaced before it is recorded anywhere."""
