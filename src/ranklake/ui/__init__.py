"""`ranklake ui`: the pages of the report from the lake as it is now, by a server that only reads."""
