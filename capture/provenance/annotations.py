"""Annotations: names, tags, notes and summary values of a run, as rows of ``annotations``. The last row is valid."""

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
_MAX_KEY_CHARACTERS: Final = 512
_MAX_CHARACTERS: Final = 8192


def annotation(
    kind: str, key: object = None, value: object = None, *, source: str, removed: bool = False
) -> dict[str, Any]:
    """Return a redacted row of ``annotations``, without columns that are NULL.

    Raises `BadValueError` for an empty key, name or note.
    """
    row: dict[str, Any] = {"kind": kind, "source": source, "author": _author()}
    if kind in {"tag", "summary"}:
        row["key"] = _one_line(key, _MAX_KEY_CHARACTERS, f"the name of a {kind}", redacted_name)
    if removed:
        return row | {"removed": True}
    if kind == "note":
        return row | {"text": _one_line(value, _MAX_CHARACTERS, "a note", redacted_text)}
    if kind == "name":
        return row | {"value": _one_line(value, _MAX_KEY_CHARACTERS, "a name", redacted_name)}
    if kind == "summary":
        row["number"] = _number(value)
    value_text = (
        None
        if value is None
        else redacted_name(value, _MAX_CHARACTERS)
        if isinstance(value, str)
        else json_text(redact_names(to_json(value)))
    )
    row["value"] = value_text or None
    return {column: content for column, content in row.items() if content is not None}


def _one_line(value: object, max_characters: int, subject: str, redaction: Callable[[object, int], str]) -> str:
    line = "" if value is None else " ".join(redaction(value, max_characters).split())
    if not line:
        raise BadValueError(f"{subject} is empty")
    return line


def _number(value: object) -> float | None:
    if isinstance(value, (str, bool)) or value is None:
        return None
    try:
        result = number(value)
    except (BadValueError, TypeError):
        return None
    return result if math.isfinite(result) else None


def _author() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return None


def incident_mark(incident: str, mark: str, why: str) -> dict[str, Any]:
    """Return a row of ``annotations`` with a person's mark of an incident. Raises `BadValueError` without a reason."""
    text = _one_line(why, _MAX_CHARACTERS, "the reason", redacted_text)
    return {"kind": "mark", "source": PERSON, "author": _author(), "key": incident, "value": mark, "text": text}


class Annotations:
    """Records the annotations of one run."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.summary, self.tags = Summary(self), Tags(self)

    def add(
        self, kind: str, key: object = None, value: object = None, *, removed: bool = False, source: str = SCRIPT
    ) -> None:
        """Record an annotation. Never raises."""
        if self._sink.is_idle:
            self._sink.miss("annotations")
            return
        with self._sink.recording("annotations"):
            self._sink.record("annotations", annotation(kind, key, value, source=source, removed=removed))


class Tags:
    """The tags of one run. Each addition and removal is a row of ``annotations``."""

    def __init__(self, annotations: Annotations) -> None:
        self._annotations = annotations

    def add(self, *tags: object, **valued: object) -> None:
        """Add tags without a value, and tags with one by keyword. Adding a tag again replaces its value."""
        for tag in tags:
            self._annotations.add("tag", tag)
        for tag, value in valued.items():
            self._annotations.add("tag", tag, value)

    def remove(self, *tags: object) -> None:
        """Remove tags. The table keeps their history."""
        for tag in tags:
            self._annotations.add("tag", tag, removed=True)


class Summary(MutableMapping[str, Any]):
    """Summary of a run: numbers and texts by name.

        run.summary["best_loss"] = 1.93
        run.summary.update(tokens_to_2=4e9, verdict="converged")

    Each assignment and deletion is a row of ``annotations``, so the table keeps all values.
    """

    def __init__(self, annotations: Annotations) -> None:
        self._annotations = annotations
        self._values: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - whatever was set
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:  # noqa: ANN401 - likewise
        self._values[text(name, _MAX_KEY_CHARACTERS)] = value
        self._annotations.add("summary", name, value)

    def __delitem__(self, name: str) -> None:
        self._values.pop(text(name, _MAX_KEY_CHARACTERS), None)
        self._annotations.add("summary", name, removed=True)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Summary({self._values!r})"
