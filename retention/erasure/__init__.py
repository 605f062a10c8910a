"""Erasure of a person's or a run's data: search, proposal, removal, certificate."""
