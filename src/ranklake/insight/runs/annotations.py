"""Annotations: names, tags and summary values of runs, by people and trainers."""

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ranklake.insight.runs import statements
from ranklake.insight.runs.asking import Ask, QueriedFacts, Row
from ranklake.segments.segment import readable_name

ARCHIVED: Final = "archived"
"""Tag of archived runs, which appear only in searches for this tag."""


@dataclass(frozen=True, slots=True)
class Annotations:
    """Name, tags and summary values of a run, the newest of each.

    Attributes
    ----------
    name
        The given name, else a readable one derived from the run's id.
    tags, summary
        By key; a tag without a value has None.
    """

    name: str
    tags: Mapping[str, str | None] = field(default_factory=dict)
    summary: Mapping[str, float | str | None] = field(default_factory=dict)


def annotations_of(run: str, rows: Iterable[Row]) -> Annotations:
    """Return a run's annotations from rows of ``annotations.sql``, which may be of several runs."""
    names: dict[str, str] = {}
    tags: dict[str, str | None] = {}
    summary: dict[str, float | str | None] = {}
    for row in rows:
        if row["run"] != run:
            continue
        key = row["key"] or ""
        if row["kind"] == "name":
            names["given"] = row["value"]
        elif row["kind"] == "tag":
            tags[key] = row["value"]
        else:
            summary[key] = row["value"] if row["number"] is None else row["number"]
    return Annotations(names.get("given") or readable_name(run), tags, summary)


def annotations_of_each(ask: Ask, runs: Iterable[str]) -> tuple[dict[str, Annotations], QueriedFacts]:
    """Return the annotations of some runs, by run, and the query's answer."""
    names = tuple(runs)
    answer = ask(statements.annotations(statements.run_condition(names)))
    rows_of: dict[str, list[Row]] = {name: [] for name in names}
    for row in answer.rows:
        rows_of[row["run"]].append(row)
    return {name: annotations_of(name, rows_of[name]) for name in names}, answer


def runs_with_tags(ask: Ask, tags: Mapping[str, str]) -> tuple[str, ...]:
    """Return the runs that have all of some tags, each with its value; an empty value matches any."""
    answer = ask(statements.annotations("kind = 'tag'"))
    tags_of: dict[str, dict[str, str | None]] = {}
    for row in answer.rows:
        tags_of.setdefault(row["run"], {})[row["key"] or ""] = row["value"]

    def has_all(own: Mapping[str, str | None]) -> bool:
        return all(tag in own and value in {"", own[tag]} for tag, value in tags.items())

    return tuple(sorted(run for run, own in tags_of.items() if has_all(own)))


def runs_named(ask: Ask, text: str) -> list[str]:
    """Return the runs that have a name (`Annotations.name`); if there are none, those whose name begins with it."""
    wanted = _normalize(text)
    if not wanted:
        return []
    runs = [str(row["run"]) for row in ask("SELECT DISTINCT run FROM run_summary").rows]
    given = {row["run"]: row["value"] for row in ask(statements.annotations("kind = 'name'")).rows}
    names = {run: _normalize(given.get(run) or readable_name(run)) for run in runs}
    whole = sorted(run for run, name in names.items() if name == wanted)
    return whole or sorted(run for run, name in names.items() if name.startswith(wanted))


def _normalize(name: str) -> str:
    """Normalize a name for comparison: case, Unicode composition and repeated spaces are ignored."""
    return " ".join(unicodedata.normalize("NFC", name).casefold().split())
