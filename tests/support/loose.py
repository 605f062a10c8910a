"""Rows under a schema that asks for nothing."""

import pyarrow as pa


def loose(rows):
    """Return the rows under types that may all be NULL, so that a test can write what ranklake would not."""
    fields = [pa.field(field.name, field.type, metadata=field.metadata) for field in rows.schema]
    return rows.cast(pa.schema(fields, rows.schema.metadata))
