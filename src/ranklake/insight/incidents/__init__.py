"""Incidents: faults with marks by people and likely causes."""
