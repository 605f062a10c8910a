"""Queries of others, brought to a later version of the tables that they ask: text in, edits out."""
