"""Incidents: what went wrong, what people say of it, what probably caused it."""
