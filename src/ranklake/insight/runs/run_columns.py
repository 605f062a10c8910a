"""Columns of runs: figures, settings, labels, tags and summary values, each under one name, for tables and groups."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final

from ranklake.insight.runs import statements
from ranklake.insight.runs.annotations import annotations_of_each
from ranklake.insight.runs.asking import Ask
from ranklake.insight.runs.find import flat
from ranklake.lake.contracts.json_text import facts_in

FIGURES: Final = (
    *("status", "job", "last_loss", "mean_step_time_s", "tokens_per_s", "mfu_ratio", "goodput_ratio", "last_step"),
    *("tokens", "attempts", "restarts", "world_size", "device_name"),
)
"""Columns of ``summary.sql`` that a table of runs may show."""
PREFIXES: Final = ("config.", "label.", "tag.", "summary.")
"""Prefixes of names of settings, labels, tags and summary values; a name without a prefix is tried with each, in
order."""
Value = str | float | bool | None


@dataclass(frozen=True, slots=True)
class RunColumns:
    """Values of some runs, by column.

    Attributes
    ----------
    values
        By run, then by the column's full name. A run without a column has no entry.
    reasons
        Why some kinds of columns are hidden from the role.
    """

    values: Mapping[str, Mapping[str, Value]]
    reasons: tuple[str, ...] = ()
    names: tuple[str, ...] = field(default=(), compare=False)

    def find(self, name: str) -> str | None:
        """Return the full name of a column, given with or without prefix; None if no run has it."""
        return next((whole for whole in (name, *(before + name for before in PREFIXES)) if whole in self.names), None)

    def matching(self, patterns: Sequence[str], most: int) -> list[str]:
        """Return the full names of columns that match patterns, those of the first pattern first."""
        chosen: list[str] = []
        for pattern in patterns:
            exact = self.find(pattern)
            chosen += [exact] if exact else [name for name in self.names if fnmatchcase(name, pattern)]
        return list(dict.fromkeys(chosen))[:most]

    def value(self, run: str, name: str) -> Value:
        """Return a value by its column's full name; None if unknown."""
        return self.values.get(run, {}).get(name)

    def differing(self) -> list[str]:
        """Return the settings in which runs differ."""
        settings = [name for name in self.names if name.startswith("config.")]
        return [name for name in settings if len({repr(self.value(run, name)) for run in self.values}) > 1]


def run_columns(ask: Ask, runs: Sequence[str]) -> RunColumns:
    """Return the columns of some runs: settings and labels of the newest attempt.

    A nested setting gives a column for each of its values (``config.optimizer.lr``).
    """
    names = tuple(runs)
    of_runs = statements.run_condition(names)
    values: dict[str, dict[str, Value]] = {run: {} for run in names}
    summaries = ask(statements.summaries(of_runs))
    for row in summaries.rows:
        values[row["run"]] |= {name: _plain(row[name]) for name in FIGURES if row[name] is not None}
    settings = ask(f"SELECT run, config, labels FROM runs WHERE {of_runs} ORDER BY run, attempt, ts\n")  # noqa: S608 - quoted
    newest = {row["run"]: row for row in settings.rows}
    for run, row in newest.items():
        for column, before in (("config", "config."), ("labels", "label.")):
            values[run] |= {before + name: _plain(value) for name, value in flat(facts_in(row[column]))}
    each, annotated = annotations_of_each(ask, names)
    for run, given in each.items():
        values[run] |= {f"tag.{name}": "yes" if value is None else value for name, value in given.tags.items()}
        values[run] |= {f"summary.{name}": _plain(value) for name, value in given.summary.items()}
    reasons = tuple(answer.reason for answer in (summaries, settings, annotated) if answer.reason)
    known = {name for of_run in values.values() for name in of_run}
    ordered = (*(name for name in FIGURES if name in known), *sorted(known.difference(FIGURES)))
    return RunColumns(MappingProxyType(values), reasons, ordered)


def as_number(value: Value) -> float | None:
    """Return a value as a finite number, else None. Texts are parsed: trainers write ``"1e-4"``."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def value_text(value: Value) -> str:
    """Return a value as a table shows it: numbers with six digits at most."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)


def _plain(value: object) -> Value:
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
