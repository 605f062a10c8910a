"""JSON output of commands, for programs."""

import json
import math
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any

import click


def json_text(facts: object) -> str:
    """Return facts as JSON on one line: dataclasses as objects, other types without a JSON form as text.

    NaN and infinities are null, as in the answers of ``ranklake sql``.
    """
    try:
        return json.dumps(facts, default=_plain, allow_nan=False)
    except ValueError:
        return json.dumps(finite(json.loads(json.dumps(facts, default=_plain))), allow_nan=False)


def show_json(facts: object) -> None:
    """Print facts as JSON."""
    click.echo(json_text(facts))  # noqa: TID251 - printable already


def finite(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return JSON values with null for NaN and infinities."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def moment_json(moment: datetime) -> str:
    """Return a time as ISO 8601, UTC as ``Z``."""
    return moment.isoformat().replace("+00:00", "Z")


def _plain(value: Any) -> object:  # noqa: ANN401 - whatever stands in facts
    if isinstance(value, datetime):
        return moment_json(value)
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)
