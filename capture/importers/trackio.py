"""trackio: reads the runs of its SQLite files in ``~/.cache/huggingface/trackio``, one file for each project.

Source: trackio/sqlite_storage.py. Each row of ``metrics`` is one call of `log`: its time, step, and a JSON object of
values, in which NaN and infinities are words. Files of old releases identify runs by name, not by id.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.common.values import json_text, redacted_name
from ranklake.capture.importers.formats import LONGEST_NAME, Format
from ranklake.capture.importers.run_files import annotate
from ranklake.capture.importers.source import SourceError, StoredRun
from ranklake.capture.importers.sqlite_file import SQLITE, SqliteFile
from ranklake.capture.importers.units import moment_ns
from ranklake.capture.importers.wandb_values import number
from ranklake.capture.provenance.names import clean
from ranklake.redaction.redact import redact_names

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun

_REQUIRED: Final = frozenset({"timestamp", "run_name", "step", "metrics"})


@dataclass
class TrackioRun:
    """A run in a project's file. `key` is its value in `column`: ``run_id``, or ``run_name`` in old files."""

    file: SqliteFile
    column: str
    key: str
    name: str
    config: dict[str, Any] = field(default_factory=dict)
    has_system_metrics: bool = False

    def calls(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each call of `log`. Raises `SourceError`."""
        query = f"SELECT id, timestamp, step, metrics FROM metrics WHERE {self.column} = ? ORDER BY id"  # noqa: S608 - ours
        yield from self.file.each_row(query, self.key)
        if self.has_system_metrics:
            query = f"SELECT id, timestamp, metrics FROM system_metrics WHERE {self.column} = ? ORDER BY id"  # noqa: S608
            yield from ({**row, "system": True} for row in self.file.each_row(query, self.key))

    def digest(self) -> str:
        """Return the SHA-256 of everything imported, in hex. Raises `SourceError`."""
        sha = hashlib.sha256(repr((self.key, self.name, sorted(self.config.items(), key=repr))).encode())
        for call in self.calls():
            sha.update(repr(sorted(call.items())).encode(errors="replace"))
        return sha.hexdigest()


def find(fs: Any, path: str) -> Iterator[StoredRun | SourceError]:  # noqa: ANN401 - a file system of fsspec
    """Yield the runs of a project's file, or of the files in a folder.

    Raises
    ------
    SourceError
        There is no file of trackio, or it is not on a local disk.
    """
    names = sorted(fs.glob(f"{path.rstrip('/')}/*.db")) if fs.isdir(path) else [path]
    files = [SqliteFile(Path(name)) for name in names if "file" in fs.protocol and _is_trackio_file(fs, name)]
    if not files:
        flaw, hint = "no file of trackio", "name PROJECT.db of ~/.cache/huggingface/trackio, or that folder"
        raise SourceError(flaw, where=path, hint=hint)
    for file in files:
        for run in _runs(file):
            title = clean(
                f"{run.name or 'run'}-{run.key[:8]}" if run.column == "run_id" else f"{file.path.stem}-{run.name}"
            )
            yield StoredRun(fs, str(file.path), 0, id=f"{file.path.stem}/{run.key}", title=title, record=run)


def _is_trackio_file(fs: Any, path: str) -> bool:  # noqa: ANN401 - a file system of fsspec
    try:
        return fs.cat_file(path, end=len(SQLITE)) == SQLITE and SqliteFile(Path(path)).columns().get(
            "metrics", set()
        ).issuperset(_REQUIRED)
    except (OSError, SourceError):
        return False


def _runs(file: SqliteFile) -> Iterator[TrackioRun]:
    columns = file.columns()
    column = "run_id" if "run_id" in columns["metrics"] else "run_name"
    configs: dict[str, dict[str, Any]] = {}
    if column in columns.get("configs", set()):
        for row in file.rows(f"SELECT {column} AS key, config FROM configs"):  # noqa: S608 - ours
            settings = _object(row["config"]) or {}
            configs[str(row["key"])] = {name: value for name, value in settings.items() if not name.startswith("_")}
    has_system_metrics = column in columns.get("system_metrics", set())
    query = f"SELECT {column} AS key, max(run_name) AS name, min(id) AS first FROM metrics GROUP BY 1 ORDER BY 3"  # noqa: S608
    for row in file.rows(query):
        key = str(row["key"])
        yield TrackioRun(file, column, key, str(row["name"] or ""), configs.get(key, {}), has_system_metrics)


def read(source: "StoredRun", recording: "ImportedRun") -> None:
    """Import a run; calls that cannot be read are refused. Raises `SourceError`."""
    run: TrackioRun = source.record
    others, first_ns = 0, None
    for call in run.calls():
        values, at_ns, row_id = _object(call["metrics"]), moment_ns(str(call["timestamp"])), call["id"]
        step = call.get("step")
        if values is None or at_ns is None:
            recording.refuse("scalars", "the row has no time or values", repr(call), row_id)
            continue
        first_ns = at_ns if first_ns is None else min(first_ns, at_ns)
        columns = {"step": step} if isinstance(step, int) and 0 <= step < 1 << 63 else {}
        for name, raw_value in values.items():
            value = number(raw_value)
            if value is None or not 0 < len(name) <= LONGEST_NAME:
                others += 1
            else:
                metric = f"system/{name}" if call.get("system") else name
                recording.unregistered(redacted_name(metric, LONGEST_NAME), value, at_ns, **columns)
    if first_ns is not None:
        annotate(recording, first_ns, name=run.name)
    recording.not_imported["values that are not numbers"] += others
    recording.facts = {"job": redacted_name(run.file.path.stem, LONGEST_NAME), "world_size": None}
    if run.config:
        recording.facts["config"] = json_text(redact_names(run.config))


def _object(raw: Any) -> dict[str, Any] | None:  # noqa: ANN401 - SQLite holds any type
    try:
        value = json.loads(raw)
    except (ValueError, TypeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


FORMAT: Final = Format(
    summary="runs of trackio, PROJECT.db",
    recognises="a SQLite file with its tables",
    read=read,
    table="scalars",
    mark=re.compile(rb"\ASQLite format 3\0(?=[\s\S]*CREATE TABLE[^(]* system_metrics)"),
    by_file=True,
    find=find,
)
