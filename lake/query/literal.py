"""Values as SQL writes them, for text that stands alone: what a page or an answer shows is what was asked."""

from datetime import datetime


def literal(value: str | datetime) -> str:
    """Return a text or a time as SQL writes it.

    Times are said to be in microseconds: ``TIMESTAMP '…'`` is in nanoseconds, which reach from 1677 to 2262.
    """
    if isinstance(value, datetime):
        return f"CAST('{value.isoformat()}' AS TIMESTAMP(6))"
    return "'" + value.replace("'", "''") + "'"
