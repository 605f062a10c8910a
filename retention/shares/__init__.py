"""Shares: copies of what a role sees, in places of their own, which are kept up to date and withdrawn."""
