"""Columns that are stored under keys of the people that they tell of: who forgets a key erases what it sealed."""
