"""Alerts: operators' rules, their evaluation, and delivery of messages."""
