"""The interactive shell of ``ranklake sql``."""
