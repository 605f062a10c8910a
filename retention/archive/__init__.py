"""Archives: rows that move from the lake to another place and can be brought back for some days."""
