"""Numbered plans: each is written before its change is made, and any process can verify and carry it out."""
