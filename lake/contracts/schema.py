"""The part of JSON Schema that `schema.json` uses.

Contracts must be validated on training hosts too, where jsonschema is not installed, and an error must say which line
and which word was meant. `tests/lake/contracts/test_contracts_schema.py` holds this to jsonschema's verdicts.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ranklake.errors import did_you_mean
from ranklake.lake.contracts.checks.registry import WRITTEN
from ranklake.lake.contracts.document import Document, KeyPath

_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that breaks the schema: where (path of keys and indices), what, and what to do."""

    at: KeyPath
    what: str
    hint: str = ""


@cache
def schema(name: str) -> dict[str, Any]:
    """Return a definition of `schema.json`: ``contract``, ``extension``, ``envelope`` or ``metrics``."""
    found: dict[str, Any] = _file()["$defs"][name]
    return found


def validate(document: Document, name: str) -> None:
    """Hold a file to a definition of `schema.json`. Raises `ContractError` with the line of the first problem."""
    for problem in problems(document.content, schema(name)):
        document.fail(problem.at, problem.what, problem.hint)


def problems(value: object, rules: Mapping[str, Any], at: KeyPath = ()) -> Iterator[Problem]:
    """Yield every way in which a value breaks a schema, in the order of the document."""
    if "$ref" in rules:
        yield from problems(value, schema(rules["$ref"].removeprefix("#/$defs/")), at)
        return
    if "type" in rules:
        allowed = [rules["type"]] if isinstance(rules["type"], str) else rules["type"]
        if not any(_TYPES[kind](value) for kind in allowed):
            yield Problem(at, f"{_shown(at)} must be {_either(allowed)}, not {_clip(value)}")
            return
    yield from _scalar_problems(value, rules, at)
    if isinstance(value, dict):
        yield from _object_problems(value, rules, at)
    elif isinstance(value, list):
        if len(value) < rules.get("minItems", 0):
            yield Problem(at, f"{_shown(at)} must not be empty")
        for index, item in enumerate(value):
            yield from problems(item, rules.get("items", {}), (*at, index))


def _scalar_problems(value: object, rules: Mapping[str, Any], at: KeyPath) -> Iterator[Problem]:
    if "enum" in rules and value not in rules["enum"]:
        known = [str(one) for one in rules["enum"]]
        yield Problem(at, f"{_shown(at)} cannot be {_clip(value)}", did_you_mean(str(value), known))
    if isinstance(value, str):
        if len(value) < rules.get("minLength", 0):
            yield Problem(at, f"{_shown(at)} must not be empty")
        elif "pattern" in rules and not _pattern(rules["pattern"]).search(value):
            yield Problem(at, f"{_shown(at)} {_clip(value)} does not match {rules['pattern']}")
    elif isinstance(value, int | float) and "minimum" in rules and value < rules["minimum"]:
        yield Problem(at, f"{_shown(at)} must be at least {rules['minimum']}, not {value}")


def _object_problems(value: Mapping[str, Any], rules: Mapping[str, Any], at: KeyPath) -> Iterator[Problem]:
    known = rules.get("properties", {})
    for key, item in value.items():
        if key in known:
            yield from problems(item, known[key], (*at, key))
        elif rules.get("additionalProperties") is False:
            yield Problem((*at, key), f"unknown key {key!r}", did_you_mean(str(key), known))
    for key in rules.get("required", ()):
        if key not in value:
            yield Problem(at, f"{_shown(at)} lacks the key {key!r}", f"add {key}: …")


@cache
def _file() -> dict[str, Any]:
    file: dict[str, Any] = json.loads(Path(__file__).with_name("schema.json").read_bytes())
    file["$defs"]["check_kind"] = {"enum": sorted(WRITTEN)}
    return file


_pattern = cache(re.compile)


def _shown(at: KeyPath) -> str:
    """Name an item the way a reader of the file would: the last key, with the index if it is in a list."""
    if not at:
        return "the file"
    if isinstance(at[-1], int):
        return f"item {at[-1] + 1} of {_shown(at[:-1])}"
    return repr(at[-1])


def _either(kinds: list[str]) -> str:
    return " or ".join(kinds)


def _clip(value: object, length: int = 40) -> str:
    text = repr(value)
    return text if len(text) <= length else f"{text[:length]}…"
