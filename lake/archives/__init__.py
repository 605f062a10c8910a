"""Archives: rows that a retention plan moved out of the lake, and the copies of them that are brought back."""
