"""Retention plans: what is due, approved, applied, cancelled while its files are kept, and purged after that."""
