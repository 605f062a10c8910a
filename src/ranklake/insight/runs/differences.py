"""Differences: what rows that say what ran, and with which settings, do not have in common."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ranklake.insight.runs.asking import Row
from ranklake.insight.runs.find import flat
from ranklake.lake.contracts.json_text import facts_in

_SETTINGS: Final = ("config", "labels")
_SURROUNDINGS: Final = ("environment", "packages", "determinism")
_OF_THE_RUN: Final = frozenset({"attempt", "ts", "unavailable", "config_sha256", *_SETTINGS, *_SURROUNDINGS})


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which runs differ: its name, and the value of each run as text; None where a run has none."""

    name: str
    values: tuple[str | None, ...]


def settings(row: Row) -> Mapping[str, str]:
    """Return configuration and labels of a row of ``code.sql``, as text by name."""
    found = dict(_texts(facts_in(row.get("config"))))
    return found | {f"label {name}": value for name, value in _texts(facts_in(row.get("labels"))).items()}


def surroundings(row: Row) -> Mapping[str, str]:
    """Return code, machine, software and environment of a row of ``code.sql``, as text by name."""
    found = {name: _text(value) for name, value in row.items() if name not in _OF_THE_RUN and value is not None}
    for column, word in zip(_SURROUNDINGS, ("variable", "package", "determinism"), strict=True):
        found |= {f"{word} {name}": value for name, value in _texts(facts_in(row.get(column))).items()}
    return found


def _texts(facts: Mapping[str, object]) -> dict[str, str]:
    return {name: _text(value) for name, value in flat(facts)}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def differences(of_each: Iterable[Mapping[str, str]]) -> tuple[tuple[Difference, ...], int]:
    """Return what is not the same everywhere, by name, and how much is."""
    every = list(of_each)
    names = sorted({name for one in every for name in one})
    told = [Difference(name, tuple(one.get(name) for one in every)) for name in names]
    differing = tuple(one for one in told if len(set(one.values)) > 1)
    return differing, len(told) - len(differing)
