"""The catalog: descriptions and sizes of all tables, columns and metrics."""
