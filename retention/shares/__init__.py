"""Shares: copies of what roles see, in places whose readers see nothing else; kept up to date, and taken back."""
