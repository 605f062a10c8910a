"""Status of ingest: whether every recorded row is accounted for, and which ranks are alive."""
