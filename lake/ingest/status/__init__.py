"""Whether the balances add up, and which ranks live."""
