"""Copies of a whole lake in another place, and the way back."""
