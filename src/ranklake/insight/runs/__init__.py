"""Runs: finds, reports and compares them, with SQL that readers can run."""
