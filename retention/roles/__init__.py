"""Roles: explanations, comparisons and tests of what they see."""
