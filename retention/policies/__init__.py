"""Retention policies: what rules are about, what they say, which of them wins, and what is wrong with them."""
