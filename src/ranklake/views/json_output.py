"""JSON for machines: the one way in which commands print facts for programs."""

import json
from dataclasses import asdict, is_dataclass
from typing import Any

import click


def json_text(facts: object) -> str:
    """Return facts as JSON on one line: dataclasses by their fields, what JSON has no form for as its text."""
    return json.dumps(facts, default=_plain)


def show_json(facts: object) -> None:
    """Print facts as JSON."""
    click.echo(json_text(facts))


def _plain(value: Any) -> object:  # noqa: ANN401 - whatever stands in facts
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)
