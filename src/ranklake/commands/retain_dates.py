"""Dates as commands of retention take them."""

from datetime import UTC, date, datetime

import click


def day_of(text: str | None, hint: str) -> date:
    """Return a date, today (UTC) for None. Raises `click.BadParameter`."""
    if text is None:
        return datetime.now(UTC).date()
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a date such as 2026-12-31", param_hint=hint) from error
