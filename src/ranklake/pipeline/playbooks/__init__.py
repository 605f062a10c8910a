"""Playbooks: operators' automated steps for incidents: files, matching, tests, and execution."""
