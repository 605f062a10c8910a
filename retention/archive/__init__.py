"""Archives: rows that leave the lake for another place, and come back from there for some days."""
