"""Annotations: what people and trainers call runs, and which tags they gave them."""

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ranklake.insight.runs import statements
from ranklake.insight.runs.asking import Answered, Ask, Row
from ranklake.segments.run_names import readable_name


@dataclass(frozen=True, slots=True)
class Annotations:
    """What was said of a run, as it counts.

    Attributes
    ----------
    name
        The one that it was given, else the one that is made of its id.
    tags, summary
        By key; a tag without a value has None.
    """

    name: str
    tags: Mapping[str, str | None] = field(default_factory=dict)
    summary: Mapping[str, float | str | None] = field(default_factory=dict)


def annotations_of(run: str, rows: Iterable[Row]) -> Annotations:
    """Return what rows of ``annotations.sql`` say of a run; those of other runs are passed over."""
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


def annotations_of_each(ask: Ask, runs: Iterable[str]) -> tuple[dict[str, Annotations], Answered]:
    """Return the annotations of some runs, by run, and the answer that they come from."""
    names = tuple(runs)
    answer = ask(statements.annotations(statements.among(names)))
    of: dict[str, list[Row]] = {name: [] for name in names}
    for row in answer.rows:
        of[row["run"]].append(row)
    return {name: annotations_of(name, of[name]) for name in names}, answer


def tagged(ask: Ask, tags: Mapping[str, str]) -> tuple[str, ...]:
    """Return the runs that have all of some tags, each with its value; an empty value stands for any."""
    answer = ask(statements.annotations("kind = 'tag'"))
    of: dict[str, dict[str, str | None]] = {}
    for row in answer.rows:
        of.setdefault(row["run"], {})[row["key"] or ""] = row["value"]
    return tuple(
        sorted(
            run for run, has in of.items() if all(tag in has and value in {"", has[tag]} for tag, value in tags.items())
        )
    )


def called_so(ask: Ask, text: str) -> list[str]:
    """Return the runs whose name for people is a text, or else begins with it: the given one, else that of their id."""
    wanted = _alike(text)
    if not wanted:
        return []
    every = [str(row["run"]) for row in ask("SELECT DISTINCT run FROM run_summary").rows]
    given = {row["run"]: row["value"] for row in ask(statements.annotations("kind = 'name'")).rows}
    names = {run: _alike(given.get(run) or readable_name(run)) for run in every}
    whole = sorted(run for run, name in names.items() if name == wanted)
    return whole or sorted(run for run, name in names.items() if name.startswith(wanted))


def _alike(name: str) -> str:
    """Return what names have in common that people take for one: letters large or small, composed or not; spaces."""
    return " ".join(unicodedata.normalize("NFC", name).casefold().split())
