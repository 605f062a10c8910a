"""SQL literals, for queries that contain their values as text. Pages show such a query as it was run."""

from datetime import datetime


def literal(value: str | datetime) -> str:
    """Return a text or a time as an SQL literal.

    A time is cast to microseconds. DataFusion's ``TIMESTAMP '…'`` has nanoseconds, which only cover the years from 1677
    to 2262.
    """
    if isinstance(value, datetime):
        return f"CAST('{value.isoformat()}' AS TIMESTAMP(6))"
    return "'" + value.replace("'", "''") + "'"
