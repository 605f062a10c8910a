"""Numbered migrations: how stored rows of a table come from one version of its contract to the next."""
