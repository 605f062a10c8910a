"""Values as SQL writes them, for text that stands alone: what a page or an answer shows is what was asked."""

from datetime import datetime


def literal(value: str | datetime) -> str:
    """Return a text or a time as SQL writes it."""
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.isoformat()}'"
    return "'" + value.replace("'", "''") + "'"
