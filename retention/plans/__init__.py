"""Retention plans: finding what is due, applying, cancelling during the days of grace, and purging afterwards."""
