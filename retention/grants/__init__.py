"""Grants: roles of people until a time, which are requested, approved, revoked and reviewed."""
