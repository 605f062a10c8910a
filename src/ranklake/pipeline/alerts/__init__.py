"""Alerts: rules that operators write, and what is to be sent to whom."""
