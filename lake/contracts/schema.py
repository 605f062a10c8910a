"""Validates contract and policy files against `schema.json`, with the keywords of JSON Schema that it uses.

Training processes validate with this module: jsonschema is not installed there, and importing pydantic takes too long.
Messages are worded as in `ranklake.operator_files`. `tests/lake/contracts/test_contracts_schema.py` compares the
results with those of jsonschema.
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
from ranklake.operator_files import KeyPath, OperatorFile, path_text, type_text
from ranklake.printable import shorten

_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}
_NAMES: Mapping[str, str] = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "boolean": "true or false",
    "null": "empty",
    "integer": "a whole number",
    "number": "a number",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One violation of the schema: its path of keys and indices, a message, and a hint how to fix it."""

    at: KeyPath
    message: str
    hint: str = ""


@cache
def schema(name: str) -> dict[str, Any]:
    """Return a definition of `schema.json`, such as ``contract``, ``extension``, ``envelope`` or ``metrics``."""
    definition: dict[str, Any] = _file()["$defs"][name]
    return definition


def validate(file: OperatorFile, name: str) -> None:
    """Validate a file against a definition of `schema.json`. Raises the file's error class, with all problems."""
    for problem in problems(file.content, schema(name)):
        file.add(problem.at, problem.message, problem.hint)
    file.raise_errors()


def problems(value: object, rules: Mapping[str, Any], at: KeyPath = ()) -> Iterator[Problem]:
    """Yield all violations of a schema by a value, in the order of the document. ``at`` is the path of the value."""
    if "$ref" in rules:
        yield from problems(value, schema(rules["$ref"].removeprefix("#/$defs/")), at)
        return
    if "type" in rules:
        allowed = [rules["type"]] if isinstance(rules["type"], str) else rules["type"]
        if not any(_TYPES[kind](value) for kind in allowed):
            names = " or ".join(_NAMES[kind] for kind in allowed)
            yield Problem(at, f"{_path_text(at)} must be {names}, not {type_text(value)}")
            return
    yield from _scalar_problems(value, rules, at)
    if isinstance(value, dict):
        yield from _object_problems(value, rules, at)
    elif isinstance(value, list):
        if len(value) < rules.get("minItems", 0):
            yield Problem(at, f"{_path_text(at)} must not be empty")
        for index, item in enumerate(value):
            yield from problems(item, rules.get("items", {}), (*at, index))


def _scalar_problems(value: object, rules: Mapping[str, Any], at: KeyPath) -> Iterator[Problem]:
    if "enum" in rules and value not in rules["enum"]:
        known = map(str, rules["enum"])
        yield Problem(at, f"{_path_text(at)} cannot be {_clip(value)}", did_you_mean(str(value), known))
    if isinstance(value, str):
        if len(value) < rules.get("minLength", 0):
            yield Problem(at, f"{_path_text(at)} must not be empty")
        elif "pattern" in rules and not _pattern(rules["pattern"]).search(value):
            yield Problem(at, f"{_path_text(at)} {_clip(value)} does not match {rules['pattern']}")
    elif isinstance(value, int | float) and "minimum" in rules and value < rules["minimum"]:
        yield Problem(at, f"{_path_text(at)} must be at least {rules['minimum']}")


def _object_problems(value: Mapping[str, Any], rules: Mapping[str, Any], at: KeyPath) -> Iterator[Problem]:
    if len(value) < rules.get("minProperties", 0):
        yield Problem(at, f"{_path_text(at)} must not be empty")
    known, additional = rules.get("properties", {}), rules.get("additionalProperties", {})
    for key, item in value.items():
        yield from problems(key, rules.get("propertyNames", {}), (*at, key))
        if key not in known and additional is False:
            message = f"unknown key {key!r} in {_path_text(at)}"
            yield Problem((*at, key), message, did_you_mean(str(key), known))
        else:
            yield from problems(item, known.get(key, additional), (*at, key))
    for key in rules.get("required", ()):
        if key not in value:
            yield Problem(at, f"{_path_text(at)} lacks the key {key!r}", f"add {key}: …")


@cache
def _file() -> dict[str, Any]:
    file: dict[str, Any] = json.loads(Path(__file__).with_name("schema.json").read_bytes())
    file["$defs"]["check_kind"] = {"enum": sorted(WRITTEN)}
    return file


_pattern = cache(re.compile)


def _path_text(at: KeyPath) -> str:
    return path_text(at) or "the file"


def _clip(value: object, length: int = 40) -> str:
    return shorten(repr(value), length)
