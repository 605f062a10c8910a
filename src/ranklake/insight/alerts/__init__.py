"""Alerts as they were sent: what fires, what ended, and who was told."""
