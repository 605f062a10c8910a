"""Whether the books add up, and which ranks live."""
