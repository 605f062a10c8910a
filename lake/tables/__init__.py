"""Delta tables: opening, schemas, commits, reading, and Parquet files."""
