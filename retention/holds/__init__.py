"""Legal holds: rows that nothing may remove until a day, or until two people release them."""
