"""Retention policies: their rules, the order of rules, lint and tests."""
