"""The spool as ingest sees it: listing it, and the gate through which foreign bytes come."""
