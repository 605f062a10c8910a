"""`ranklake ui`: serves the pages of the report from the current lake."""
