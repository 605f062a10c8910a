"""Sealing: slots and frames become Parquet segments."""
