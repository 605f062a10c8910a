"""Neptune: reads the files of its exporter, Parquet with a row for each value.

    <data>/<project>/<run>_part_<n>.parquet        <files>/<project>/<path of a row>

Source: github.com/neptune-ai/neptune-exporter, src/neptune_exporter/model.py and README.md. `attribute_type` gives the
column of a row's value. Series have a time and a step, which may be a fraction. Other rows are settings or files.
"""

import hashlib
import json
import posixpath
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ranklake.capture.assets.media_value import IMAGE
from ranklake.capture.common.values import json_text, redacted_name
from ranklake.capture.histogram import Histogram, histogram_of_bins
from ranklake.capture.importers.folders import files_at
from ranklake.capture.importers.formats import LONGEST_NAME, Format
from ranklake.capture.importers.run_files import OpenFiles, annotate
from ranklake.capture.importers.source import Source, SourceError, StoredRun
from ranklake.capture.provenance.names import clean
from ranklake.redaction.redact import redact, redact_names

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun

_PART: Final = re.compile(r"(.+)_part_(\d{1,9})\.parquet")
_REQUIRED: Final = ("project_id", "run_id", "attribute_path", "attribute_type")
_REGISTRY: Final = frozenset({"models", "model_versions"})
_SETTINGS: Final = {"float": "float_value", "int": "int_value", "string": "string_value", "bool": "bool_value",
                    "datetime": "datetime_value", "string_set": "string_set_value"}  # fmt: skip
_FILES: Final = frozenset({"file", "file_series", "artifact"})
_BATCH_ROWS: Final = 20_000
_MAX_TEXT_CHARACTERS: Final = 8_192
_NS_PER_MS: Final = 10**6


@dataclass
class NeptuneRun:
    """A run: paths of its Parquet files in order, and the `folder` of its downloaded files."""

    fs: Any
    parts: list[str]
    project: str
    id: str
    folder: str

    def digest(self) -> str:
        """Return the SHA-256 of the parts' digests, in hex. Raises `OSError`."""
        digests = [Source(self.fs, part, 0).digest() for part in self.parts]
        return hashlib.sha256("\0".join(digests).encode()).hexdigest()

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the exported rows, times in ms since 1970. Raises `SourceError`."""
        for part in self.parts:
            try:
                with self.fs.open(part, "rb") as raw:
                    for batch in pq.ParquetFile(raw).iter_batches(_BATCH_ROWS, use_threads=False):
                        yield from _times_in_ms(batch).to_pylist()
            except (pa.ArrowException, OSError) as error:
                raise _unreadable(part) from error


@dataclass
class _Content:
    """What is collected of a run while its rows are read.

    Attributes
    ----------
    config, sys
        Settings by name; those below ``sys/`` are Neptune's.
    files
        Rows of files.
    others
        Number of values that are not imported, by kind.
    fractions
        Number of values whose step is a fraction.
    """

    config: dict[str, Any] = field(default_factory=dict)
    sys: dict[str, Any] = field(default_factory=dict)
    files: list[dict[str, Any]] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    fractions: int = 0
    first_ms: int | None = None
    last_ms: int | None = None


def find(fs: Any, path: str) -> Iterator[StoredRun | SourceError]:  # noqa: ANN401 - a file system of fsspec
    """Yield the runs of an export. The path is its folder of data, a folder above or below that, or a run's first file.

    Raises
    ------
    SourceError
        There is no exported run.
    """
    names = files_at(fs, path.rstrip("/"))
    runs: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        if match := _PART.fullmatch(posixpath.basename(name)):
            runs.setdefault(f"{posixpath.dirname(name)}/{match[1]}", []).append((int(match[2]), name))
    if not runs:
        hint = "name the folder that its exporter wrote, with RUN_part_0.parquet in it"
        raise SourceError("no export of Neptune", where=path, hint=hint)
    for prefix, numbered_parts in sorted(runs.items()):
        parts = [name for _, name in sorted(numbered_parts)]
        folder = posixpath.dirname(prefix)
        try:
            project, run = _owner(fs, parts[0])
        except SourceError as error:
            yield error
            continue
        left_out = "models of the registry" if posixpath.basename(folder) in _REGISTRY else ""
        files = f"{posixpath.dirname(posixpath.dirname(folder))}/files/{posixpath.basename(folder)}"
        record = NeptuneRun(fs, parts, project, run, files)
        yield StoredRun(fs, prefix, 0, id=f"{project}/{run}", title=clean(run), record=record, left_out=left_out)


def _owner(fs: Any, part: str) -> tuple[str, str]:  # noqa: ANN401 - a file system of fsspec
    """Return project and run of a file. Raises `SourceError`."""
    try:
        with fs.open(part, "rb") as raw:
            batch = next(pq.ParquetFile(raw).iter_batches(1, columns=list(_REQUIRED), use_threads=False), None)
        row = batch.to_pylist()[0] if batch is not None and batch.num_rows else {}
        return str(row["project_id"]), str(row["run_id"])
    except (pa.ArrowException, OSError, KeyError) as error:
        raise _unreadable(part) from error


def _unreadable(part: str) -> SourceError:
    return SourceError("cannot be read as an export of Neptune", where=posixpath.basename(part), hint="copy it again")


def _times_in_ms(batch: pa.RecordBatch) -> pa.Table:
    table = pa.table(batch)
    for name in ("timestamp", "datetime_value"):
        if name in table.column_names:
            ms = table[name].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
            table = table.set_column(table.column_names.index(name), name, ms)
    return table


def read(source: "StoredRun", recording: "ImportedRun") -> None:
    """Import a run; rows that cannot be read are refused. Raises `SourceError`."""
    run: NeptuneRun = source.record
    content = _Content()
    for number, row in enumerate(run.rows(), 1):
        name, kind = row.get("attribute_path"), row.get("attribute_type")
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
            recording.refuse("scalars", "the name is empty or too long", str(name), number)
        elif isinstance(kind, str) and kind.endswith("_series") and row.get("timestamp") is None:
            recording.refuse("scalars", "the value has no time", name, number)
        elif kind in _FILES:
            content.files.append(row)
        elif isinstance(kind, str) and kind.endswith("_series"):
            _add_point(row, name, kind, content, recording)
        else:
            _add_setting(row, name, str(kind), content)
    start_ms = content.sys.get("sys/creation_time") or content.first_ms
    if start_ms is None:
        start_ms = Source(run.fs, run.parts[0], 0).changed_ms()
        recording.labels["times"] = "the file's last change; the run has no time"
    end_ms = max(start_ms, content.last_ms or start_ms)
    _add_annotations(content.sys, recording, start_ms * _NS_PER_MS, end_ms * _NS_PER_MS)
    _add_files(content, run, recording, end_ms * _NS_PER_MS)
    _add_facts(content, run, recording)


def _add_setting(row: dict[str, Any], name: str, kind: str, content: _Content) -> None:
    """Keep a setting of the run, in `content.sys` if it is Neptune's own."""
    if kind not in _SETTINGS:
        content.others[f"values of the type {redacted_name(kind, 64)}"] += 1
        return
    value = row.get(_SETTINGS[kind])
    if name.startswith("sys/"):
        content.sys[name] = value
    else:
        if kind == "datetime" and isinstance(value, int):
            value = datetime.fromtimestamp(value / 1000, UTC).isoformat()
        content.config[name] = value


def _add_facts(content: _Content, run: NeptuneRun, recording: "ImportedRun") -> None:
    """Set labels and columns of the row of ``runs``."""
    if content.fractions:
        recording.labels["steps"] = f"{content.fractions} values have no step, because theirs are fractions"
    recording.not_imported.update(content.others)
    recording.labels["neptune_run_id"] = redacted_name(run.id, LONGEST_NAME)
    facts = {"user": content.sys.get("sys/owner"), "host": content.sys.get("sys/hostname")}
    facts = {name: redacted_name(value, LONGEST_NAME) for name, value in facts.items() if isinstance(value, str)}
    recording.facts = {"job": redacted_name(run.project, LONGEST_NAME) or recording.run, "world_size": None, **facts}
    if content.config:
        recording.facts["config"] = json_text(redact_names(content.config))


def _add_point(row: dict[str, Any], name: str, kind: str, content: _Content, recording: "ImportedRun") -> None:
    """Add a value of a series."""
    at_ms, step = row["timestamp"], row.get("step")
    content.first_ms = min(at_ms, content.first_ms if content.first_ms is not None else at_ms)
    content.last_ms = max(at_ms, content.last_ms if content.last_ms is not None else at_ms)
    is_whole = step is not None and step == int(step) and step >= 0
    content.fractions += step is not None and not is_whole
    step_column = {"step": int(step)} if is_whole and step is not None else {}
    name, at_ns = redacted_name(name, LONGEST_NAME), at_ms * _NS_PER_MS
    if kind == "float_series" and row.get("float_value") is not None:
        recording.unregistered(name, row["float_value"], at_ns, **step_column)
    elif kind == "string_series" and row.get("string_value") is not None:
        stream = next((word for word in ("stdout", "stderr") if name.endswith(f"/{word}")), None)
        message = redact(row["string_value"][:_MAX_TEXT_CHARACTERS])
        recording.row("logs", at_ns, message=message, logger=name, stream=stream, **step_column)
    elif kind == "histogram_series" and (histogram := _histogram(row.get("histogram_value"))) is not None:
        recording.distribution(name, histogram, at_ns, sum=None, **step_column)
    else:
        content.others[f"invalid values of {kind}"] += 1


def _histogram(value: Any) -> Histogram | None:  # noqa: ANN401 - a struct of Parquet's
    """Convert a histogram of counts; None if it has densities, is empty, or cannot be read."""
    if not isinstance(value, dict) or str(value.get("type")).upper() != "COUNTING":
        return None
    edges, counts = (np.array(value.get(name) or [], np.float64) for name in ("edges", "values"))
    return histogram_of_bins(edges[:-1], edges[1:], counts)


def _add_annotations(sys: dict[str, Any], recording: "ImportedRun", start_ns: int, end_ns: int) -> None:
    """Add name, note and tags of a run as annotations, and an event if it failed."""
    tags = {tag for name in ("sys/tags", "sys/group_tags") for tag in sys.get(name) or ()}
    annotate(recording, start_ns, name=sys.get("sys/name"), note=sys.get("sys/description"), tags=sorted(tags))
    if sys.get("sys/failed") is True:
        about = json.dumps({"neptune_failed": True})
        recording.row("events", end_ns, event="failure", severity="error", attributes=about)


def _add_files(content: _Content, run: NeptuneRun, recording: "ImportedRun", end_ns: int) -> None:
    """Add files to `artifacts` by reference; images of series to `media` if the export has them."""
    files = OpenFiles(run.fs, run.folder)
    for row in content.files:
        path, step, at_ms = (row.get("file_value") or {}).get("path"), row.get("step"), row.get("timestamp")
        name = redacted_name(row["attribute_path"], LONGEST_NAME)
        step_column = {"step": int(step)} if step is not None and step == int(step) and step >= 0 else {}
        media_kind = IMAGE if row["attribute_type"] == "file_series" else ""
        files.add(recording, name, path, end_ns if at_ms is None else at_ms * _NS_PER_MS, media_kind, **step_column)


FORMAT: Final = Format(
    summary="exports of Neptune, RUN_part_0.parquet",
    recognises="Parquet with project_id, run_id and attribute_path",
    read=read,
    table="scalars",
    by_file=True,
    find=find,
)
