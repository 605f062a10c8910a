"""Serving: requests of a served model, without what was asked and answered."""
