"""Tracker export: reads runs that a script fetched through a tracker's API.

    <folder>/run.json                      id, name, config, summary, tags (scripts: docs/coming-over.md)
    <folder>/history.jsonl|csv|parquet     rows of values logged together
    <folder>/events.jsonl|csv|parquet      rows of system metrics

Rows have the form of wandb's API: ``_step``, ``_timestamp`` (s since 1970), ``_runtime`` (s), and values by name.
"""

import csv
import hashlib
import io
import json
import math
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ranklake.capture.common.values import json_text, redacted_name
from ranklake.capture.importers.folders import files_at
from ranklake.capture.importers.formats import LONGEST_NAME, Format
from ranklake.capture.importers.run_files import annotate
from ranklake.capture.importers.source import Source, SourceError, StoredRun
from ranklake.capture.importers.units import moment_ns
from ranklake.capture.importers.wandb_values import add_object, file_below, number, split_objects
from ranklake.capture.provenance.names import clean
from ranklake.redaction.redact import redact_names

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun

_ABOUT: Final = "run.json"
_TRACKER_COLUMNS: Final = frozenset({"_step", "_timestamp", "_runtime", "_wandb"})
_MARK: Final = re.compile(rb'\A(?:\s*\[?\s*\{(?:[^\n]*|[^{}]*)"_timestamp"\s*:|[^\n]*,"?_timestamp"?(?:,|\r?\n))')
_SUFFIXES: Final = (".jsonl", ".csv", ".parquet", ".json")
_MAX_BYTES: Final = 1 << 30
_MAX_S: Final = 1 << 32
_NS: Final = 10**9
_STATES: Final = {
    "finished": ("run_end", "info"), "failed": ("failure", "error"), "crashed": ("failure", "error"),
    "killed": ("preemption", "warning"),
}  # fmt: skip


@dataclass
class ExportedRun:
    """An exported run: paths of its files (None if missing), and the content of its ``run.json``."""

    fs: Any
    history: str | None
    events: str | None
    folder: str
    about: dict[str, Any] = field(default_factory=dict)

    def digest(self) -> str:
        """Return the SHA-256 of everything imported, in hex. Raises `OSError`."""
        parts = [json.dumps(self.about, sort_keys=True, default=str)]
        parts += [Source(self.fs, path, 0).digest() for path in (self.history, self.events) if path]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def find(fs: Any, path: str) -> Iterator[StoredRun | SourceError]:  # noqa: ANN401 - a file system of fsspec
    """Yield the runs of an export: folders with ``run.json``, and other files of a history.

    Raises
    ------
    SourceError
        There is no run.
    """
    root = path.rstrip("/")
    names = files_at(fs, root)
    folders = {posixpath.dirname(name) for name in names if posixpath.basename(name) == _ABOUT}
    runs: list[StoredRun | SourceError] = []
    for folder in sorted(folders):
        rows = {stem: f"{folder}/{stem}{suffix}" for suffix in reversed(_SUFFIXES) for stem in ("history", "events")
                if f"{folder}/{stem}{suffix}" in names}  # fmt: skip
        try:
            about = _about(Source(fs, f"{folder}/{_ABOUT}", 0))
        except SourceError as error:
            runs.append(error)
            continue
        record = ExportedRun(fs, rows.get("history"), rows.get("events"), folder, about)
        key = str(about.get("id") or posixpath.basename(folder))
        title = clean(f"{about.get('name') or 'run'}-{key[:8]}")
        runs.append(StoredRun(fs, folder, 0, id=key, title=title, record=record))
    for name in names:
        folder, stem = posixpath.dirname(name), posixpath.basename(name).rpartition(".")[0]
        if folder not in folders and name.endswith(_SUFFIXES) and _is_history(fs, name):
            record = ExportedRun(fs, name, None, folder)
            subfolder = folder.removeprefix(root).strip("/") if fs.isdir(root) else ""
            title = clean("-".join(filter(None, [*subfolder.split("/"), stem])))
            runs.append(StoredRun(fs, name, 0, id=name, title=title, record=record))
    if not runs:
        hint = "name a folder with run.json and history.jsonl, or a file of a run's history (docs/coming-over.md)"
        raise SourceError("no export of a tracker", where=root, hint=hint)
    yield from runs


def _about(source: Source) -> dict[str, Any]:
    try:
        about = json.loads(source.read_all(_MAX_BYTES))
    except (ValueError, RecursionError) as error:
        raise SourceError("not JSON", where=source.name, hint="export it again") from error
    if not isinstance(about, dict) or not {"config", "summary"}.issubset(about):
        raise SourceError("not a run of a tracker", where=source.name, hint="it needs id, config and summary")
    return about


def _is_history(fs: Any, path: str) -> bool:  # noqa: ANN401 - a file system of fsspec
    """Whether a file's first row has wandb's ``_timestamp``. Only the head is read: other files may be large."""
    try:
        if not path.endswith(".parquet"):
            return _MARK.search(Source(fs, path, 0).head()) is not None
        with fs.open(path, "rb") as raw:
            return {"_step", "_timestamp"}.issubset(pq.read_schema(raw).names)
    except (SourceError, OSError, pa.ArrowException):
        return False


def _rows(source: Source) -> Iterator[Any]:
    """Yield the rows of a file; a line that is not JSON is yielded as text. Raises `SourceError`."""
    try:
        if source.name.endswith(".parquet"):
            with source.fs.open(source.path, "rb") as raw:
                for batch in pq.ParquetFile(raw).iter_batches(10_000, use_threads=False):
                    yield from batch.to_pylist()
        elif source.name.endswith(".csv"):
            text = io.TextIOWrapper(source.text_stream(), "utf-8", errors="replace", newline="")
            yield from ({name: _cell(cell) for name, cell in row.items() if name} for row in csv.DictReader(text))
        elif source.name.endswith(".json"):
            rows = json.loads(source.read_all(_MAX_BYTES))
            yield from rows if isinstance(rows, list) else ()
        else:
            for line in source.lines():
                yield _json(line.text) if line.text.strip() or line.flaw else {}
    except (pa.ArrowException, csv.Error, ValueError, RecursionError) as error:
        flaw = f"cannot be read ({type(error).__name__})"
        raise SourceError(flaw, where=source.name, hint="export it again") from error


def _json(text: str) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _cell(cell: str | None) -> Any:  # noqa: ANN401 - JSON
    """Return a cell as a number, or else as text; None if it is empty."""
    if not isinstance(cell, str) or not cell.strip():
        return None
    try:
        return float(cell)
    except ValueError:
        return cell


def read(source: "StoredRun", recording: "ImportedRun") -> None:
    """Import a run; rows that cannot be read are refused. Raises `SourceError`."""
    run: ExportedRun = source.record
    reader = _Reader(run, recording)
    for path, is_events in ((run.history, False), (run.events, True)):
        if path is not None:
            for count, row in enumerate(_rows(Source(run.fs, path, 0)), 1):
                if row:
                    reader.add(row, count, is_events=is_events)
    reader.add_summary()
    reader.add_about()


@dataclass
class _Reader:
    """Adds a run's rows, then its summary and its facts, to a recording."""

    run: ExportedRun
    recording: "ImportedRun"
    first_ns: int | None = None
    last_ns: int | None = None
    not_imported_count: int = 0
    names: set[str] = field(default_factory=set)

    @property
    def created_ns(self) -> int | None:
        """When the run was created, ns since 1970."""
        return moment_ns(str(self.run.about.get("created_at") or self.run.about.get("createdAt") or ""))

    def add(self, row: Any, count: int, *, is_events: bool) -> None:  # noqa: ANN401 - JSON
        """Add a row of the history, or of system metrics."""
        at_ns = self._time_ns(row) if isinstance(row, dict) else None
        if at_ns is None:
            self.recording.refuse("scalars", "the row has no time", json.dumps(row, default=str), count)
            return
        self.first_ns = min(at_ns, self.first_ns if self.first_ns is not None else at_ns)
        self.last_ns = max(at_ns, self.last_ns if self.last_ns is not None else at_ns)
        raw_step = number(row.get("_step"))
        is_step = not is_events and raw_step is not None and math.isfinite(raw_step) and 0 <= raw_step < 1 << 53
        step = int(raw_step) if is_step and raw_step is not None else None
        plain, objects = split_objects({name: raw_value for name, raw_value in row.items() if raw_value is not None})
        for name, raw_value in plain.items():
            value = number(raw_value)
            if name in _TRACKER_COLUMNS:
                continue
            if value is None or not 0 < len(name) <= LONGEST_NAME:
                self.not_imported_count += 1
                continue
            self.names.add(name)
            label = f"system/{name.removeprefix('system.')}" if is_events else name
            self.recording.unregistered(redacted_name(label, LONGEST_NAME), value, at_ns, step=step)
        fetch = partial(file_below, self.run.fs, self.run.folder)
        for name, raw_value in objects.items():
            self.names.add(name)
            self.not_imported_count += not add_object(self.recording, name, raw_value, at_ns, step, fetch)

    def _time_ns(self, row: dict[str, Any]) -> int | None:
        at_s, runtime_s = number(row.get("_timestamp")), number(row.get("_runtime"))
        if at_s is not None and math.isfinite(at_s) and 0 < at_s < _MAX_S:
            return round(at_s * 1e6) * 1000
        if runtime_s is None or self.created_ns is None:
            return None
        if math.isfinite(runtime_s) and 0 <= runtime_s < _MAX_S:
            return self.created_ns + round(runtime_s * 1e6) * 1000
        return None

    def add_summary(self) -> None:
        """Add values of the summary whose names are in no row, without a step."""
        summary = self.run.about.get("summary")
        plain, _ = split_objects(summary if isinstance(summary, dict) else {})
        at_ns = self.last_ns or self.created_ns
        for name, raw_value in sorted(plain.items()):
            value = number(raw_value)
            if name in self.names or name.startswith("_") or value is None or not 0 < len(name) <= LONGEST_NAME:
                continue
            if at_ns is None:
                self.recording.refuse("scalars", "the summary's value has no time", json.dumps({name: raw_value}))
            else:
                self.last_ns = at_ns
                self.recording.unregistered(redacted_name(name, LONGEST_NAME), value, at_ns)

    def add_about(self) -> None:
        """Add facts, name, note, tags, and how the run ended."""
        about, recording = self.run.about, self.recording
        start_ns = self.created_ns or self.first_ns
        recording.not_imported["values that are not numbers"] += self.not_imported_count
        if start_ns is not None:
            tags = about.get("tags") if isinstance(about.get("tags"), list) else []
            annotate(recording, start_ns, name=about.get("name"), note=about.get("notes"), tags=tags or ())
        if (state := about.get("state")) in _STATES and self.last_ns is not None:
            event, severity = _STATES[state]
            recording.row("events", self.last_ns, event=event, severity=severity,
                          attributes=json.dumps({"state": state}))  # fmt: skip
        for name in ("id", "group"):
            if about.get(name):
                recording.labels[f"tracker_{name}"] = redacted_name(about[name], LONGEST_NAME)
        recording.facts = {
            "job": redacted_name(about.get("project") or recording.run, LONGEST_NAME),
            "world_size": None,
        }
        config = about.get("config")
        if isinstance(config, dict) and config:
            recording.facts["config"] = json_text(redact_names(config))


FORMAT: Final = Format(
    summary="runs that a script fetched from wandb, Aim or another tracker",
    recognises="rows with _step and _timestamp, or folders with run.json",
    read=read,
    table="scalars",
    mark=_MARK,
    by_file=True,
    by_name=True,
    find=find,
)
