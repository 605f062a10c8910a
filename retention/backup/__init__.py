"""Backups of a whole lake in another place, and their restore."""
