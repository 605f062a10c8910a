"""JSON in text columns: which of it every reader can parse."""

import json
from typing import Final

NESTED: Final = 64
"""Objects and lists in each other; capture writes at most ten, and readers of JSON follow some hundred."""


def parsed(text: str | None) -> object:
    """Return what JSON text says. Raises `ValueError` where it is none, or nested deeper than `NESTED`."""
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
    """Whether text is JSON that every reader can parse."""
    try:
        parsed(text)
    except ValueError:
        return False
    return True


def facts_in(text: str | None) -> dict[str, object]:
    """Return the object that text is the JSON of; an empty one where it is none."""
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
        depth += any(isinstance(one, (dict, list)) for one in level)
        level = inner
    return depth
