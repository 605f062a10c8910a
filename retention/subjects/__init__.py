"""Columns that are stored under keys of people. Deleting a key erases the values that it sealed."""
