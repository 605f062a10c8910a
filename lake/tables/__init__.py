"""Delta tables: opening, committing, reading, and the Parquet files in them."""
