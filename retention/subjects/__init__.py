"""Columns that are stored under keys of the people they are about: to forget a key erases what it sealed."""
