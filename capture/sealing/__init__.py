"""Sealing: convert slots and frames to Parquet segments."""
