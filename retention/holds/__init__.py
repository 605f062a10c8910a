"""Legal holds: rows that nothing may take, until a day or until two people release them."""
