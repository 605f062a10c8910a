"""Series: the names that values and spans go by, and what the registry of metrics says of them."""
