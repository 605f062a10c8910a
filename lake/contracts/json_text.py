"""JSON in text columns: parsing with a limit on nesting, so that every reader can parse accepted text."""

import json
from typing import Final

NESTED: Final = 64
"""Maximum nesting of objects and lists. Capture writes at most ten levels; common JSON readers fail at some hundred."""


def parsed(text: str | None) -> object:
    """Return the value of JSON text. Raises `ValueError` for None, invalid JSON, or nesting deeper than `NESTED`."""
    if text is None:
        raise ValueError("no text")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if text.count("[") + text.count("{") > NESTED and _depth(value) > NESTED:
        raise ValueError("nested too deep")
    return value


def is_json(text: str) -> bool:
    """Whether text is valid JSON, nested no deeper than `NESTED`."""
    try:
        parsed(text)
    except ValueError:
        return False
    return True


def facts_in(text: str | None) -> dict[str, object]:
    """Return the JSON object in a text; an empty dictionary if the text is None, invalid or no object."""
    try:
        facts = parsed(text)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _depth(value: object) -> int:
    depth, level = 0, [value]
    while level:
        inner: list[object] = []
        for child in level:
            if isinstance(child, dict):
                inner += child.values()
            elif isinstance(child, list):
                inner += child
        depth += any(isinstance(item, (dict, list)) for item in level)
        level = inner
    return depth
