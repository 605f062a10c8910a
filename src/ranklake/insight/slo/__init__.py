"""Service level objectives: files in OpenSLO v1 (`document`), what was attained of them (`evaluation`), the table."""
