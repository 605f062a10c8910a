"""Annotations: names, tags, notes and summary values of a run, each a row of ``annotations``; the last counts."""

import getpass
import math
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Final

from ranklake.capture.common.values import BadValueError, json_text, number, redacted_name, redacted_text, text, to_json
from ranklake.capture.lanes.sink import Sink
from ranklake.redaction.redact import redact_names

SCRIPT: Final = "script"
TRAINER: Final = "trainer"
PERSON: Final = "person"
_LONGEST_KEY: Final = 512
_LONGEST: Final = 8192


def annotation(
    kind: str, key: object = None, value: object = None, *, source: str, removed: bool = False
) -> dict[str, Any]:
    """Return a row of ``annotations``, redacted, without what is not known.

    Raises `BadValueError` for a key, a name or a note without a letter.
    """
    row: dict[str, Any] = {"kind": kind, "source": source, "author": _author()}
    if kind in {"tag", "summary"}:
        row["key"] = _one_line(key, _LONGEST_KEY, f"the name of a {kind}", redacted_name)
    if removed:
        return row | {"removed": True}
    if kind == "note":
        return row | {"text": _one_line(value, _LONGEST, "a note", redacted_text)}
    if kind == "name":
        return row | {"value": _one_line(value, _LONGEST_KEY, "a name", redacted_name)}
    if kind == "summary":
        row["number"] = _number(value)
    shown = (
        None
        if value is None
        else redacted_name(value, _LONGEST)
        if isinstance(value, str)
        else json_text(redact_names(to_json(value)))
    )
    return {column: said for column, said in (row | {"value": shown or None}).items() if said is not None}


def _one_line(value: object, longest: int, subject: str, redaction: Callable[[object, int], str]) -> str:
    line = "" if value is None else " ".join(redaction(value, longest).split())
    if not line:
        raise BadValueError(f"{subject} is empty")
    return line


def _number(value: object) -> float | None:
    if isinstance(value, (str, bool)) or value is None:
        return None
    try:
        value_found = number(value)
    except (BadValueError, TypeError):
        return None
    return value_found if math.isfinite(value_found) else None


def _author() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return None


def incident_mark(incident: str, mark: str, why: str) -> dict[str, Any]:
    """Return a row of ``annotations`` by which a person marks an incident. Raises `BadValueError` without a reason."""
    text = _one_line(why, _LONGEST, "the reason", redacted_text)
    return {"kind": "mark", "source": PERSON, "author": _author(), "key": incident, "value": mark, "text": text}


class Annotations:
    """The annotations of one run, as its process gives them."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.summary, self.tags = Summary(self), Tags(self)

    def add(
        self, kind: str, key: object = None, value: object = None, *, removed: bool = False, source: str = SCRIPT
    ) -> None:
        """Record one; nothing is raised."""
        if self._sink.is_idle:
            self._sink.miss("annotations")
            return
        with self._sink.recording("annotations"):
            self._sink.record("annotations", annotation(kind, key, value, source=source, removed=removed))


class Tags:
    """The tags of one run; each that is added or taken back is a row of ``annotations``."""

    def __init__(self, annotations: Annotations) -> None:
        self._annotations = annotations

    def add(self, *tags: object, **valued: object) -> None:
        """Add tags, some with a value; of one that is added again the last value counts."""
        for tag in tags:
            self._annotations.add("tag", tag)
        for tag, value in valued.items():
            self._annotations.add("tag", tag, value)

    def remove(self, *tags: object) -> None:
        """Take tags back. That they were there stays in the table."""
        for tag in tags:
            self._annotations.add("tag", tag, removed=True)


class Summary(MutableMapping[str, Any]):
    """Summary of a run: numbers and texts by name; the last value set counts.

        run.summary["best_loss"] = 1.93
        run.summary.update(tokens_to_2=4e9, verdict="converged")

    Each assignment is a row of ``annotations``, and so is each deletion: nothing is overwritten.
    """

    def __init__(self, annotations: Annotations) -> None:
        self._annotations = annotations
        self._known: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - whatever was set
        return self._known[name]

    def __setitem__(self, name: str, value: Any) -> None:  # noqa: ANN401 - likewise
        self._known[text(name, _LONGEST_KEY)] = value
        self._annotations.add("summary", name, value)

    def __delitem__(self, name: str) -> None:
        self._known.pop(text(name, _LONGEST_KEY), None)
        self._annotations.add("summary", name, removed=True)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def __repr__(self) -> str:
        return f"Summary({self._known!r})"
