"""Trainer values: metrics by step in a file that a trainer writes beside its model.

    files of one name below a folder ─▶ a run per folder ─▶ scalars, runs.config, annotations (summary)

If a file has no times, its values get the time of its last change, and the run's label ``times`` says so.
"""

import csv
import hashlib
import io
import json
import math
import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ranklake.capture.common.values import json_text, redacted_name
from ranklake.capture.importers.folders import walk
from ranklake.capture.importers.formats import LONGEST_NAME
from ranklake.capture.importers.source import Source, SourceError, StoredRun
from ranklake.capture.provenance.names import clean
from ranklake.file_formats import FormatError, read_yaml
from ranklake.redaction.redact import redact_names

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun

MOST_BYTES: Final = 256 << 20
_S: Final = 10**9
_SKIPPED: Final = "\0"
"""Header of columns that are not imported; no file contains it, because NUL is replaced."""
_CHECKPOINT: Final = re.compile(r"checkpoint-(\d{1,18})")


class Value(NamedTuple):
    """A metric's value at a step; `at_s` is its time since the begin of training, None if unknown."""

    name: str
    value: float
    step: int | None
    at_s: float | None = None


class Refusal(NamedTuple):
    """A line that cannot be read."""

    reason: str
    text: str
    line: int | None = None


@dataclass
class TrainerValues:
    """The content of a file about one run.

    Attributes
    ----------
    changed_ms
        Time of the file's last change, ms since 1970.
    summary
        Values of the whole run, by name.
    """

    changed_ms: int
    sha256: str
    values: list[Value] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, float] = field(default_factory=dict)

    def digest(self) -> str:
        """Return the SHA-256 of the file and of the run's configuration, without times."""
        return hashlib.sha256(
            f"{self.sha256}\0{json.dumps(self.config, sort_keys=True, default=str)}".encode()
        ).hexdigest()


Parse = Callable[[Source, TrainerValues], None]
"""Reads a file into `TrainerValues`. Raises `SourceError` if it is not of the format."""


def find_files(
    fs: Any,  # noqa: ANN401 - a file system of fsspec
    path: str,
    names: tuple[str, ...],
    parse: Parse,
    choose: Callable[[list[str]], list[str]] = sorted,
) -> Iterator[StoredRun | SourceError]:
    """Yield a run for the file at `path`, or for each file below that folder with one of the names.

    Parameters
    ----------
    choose
        Selects from all such files below a folder those that are runs.
    """
    if fs.isdir(path):
        root = path.rstrip("/")
        files = choose([name for name, _ in walk(fs, root) if posixpath.basename(name) in names])
        if not files:
            flaw = f"no {' or '.join(names)} is in the folder"
            raise SourceError(flaw, where=root, hint="name a folder that contains one at any depth")
    else:
        root, files = posixpath.dirname(run_folder(path)), [path]
    for name in files:
        source = Source(fs, name, int(fs.info(name)["size"] or 0))
        try:
            record = TrainerValues(source.changed_ms(), source.digest())
            parse(source, record)
        except (OSError, SourceError) as error:
            yield error if isinstance(error, SourceError) else SourceError(
                f"cannot be read ({type(error).__name__})", where=source.name, hint="check its permissions"
            )  # fmt: skip
            continue
        subfolder = run_folder(name).removeprefix(root).strip("/")
        title = clean("-".join(subfolder.split("/")) or posixpath.basename(root) or source.stem)
        yield StoredRun(fs, name, source.size_bytes, id=name, title=title, record=record)


def run_folder(path: str) -> str:
    """Return the folder of a file's run: the file's folder, or for a file in a checkpoint the folder above that."""
    folder = posixpath.dirname(path)
    return posixpath.dirname(folder) if checkpoint_step(folder) is not None else folder


def checkpoint_step(folder: str) -> int | None:
    """Return the step of a folder ``checkpoint-<step>``; None for other folders."""
    match = _CHECKPOINT.fullmatch(posixpath.basename(folder))
    return int(match[1]) if match else None


def read_values(source: StoredRun, recording: "ImportedRun") -> None:
    """Import a run of `find_files`.

    Raises
    ------
    SourceError
        The file has no value.
    """
    record: TrainerValues = source.record
    if not record.values and not record.refusals:
        raise SourceError("has no values", where=posixpath.basename(source.path), hint="name a file with values")
    for reason, text, line in record.refusals:
        recording.refuse("scalars", reason, text, line)
    last_s = max((value.at_s for value in record.values if value.at_s is not None), default=0.0)
    end_ns = record.changed_ms * 10**6
    for value in record.values:
        at_ns = end_ns if value.at_s is None else end_ns - round((last_s - value.at_s) * _S)
        columns = {} if value.step is None else {"step": value.step}
        recording.unregistered(value.name, value.value, at_ns, **columns)
    for name, number in sorted(record.summary.items()):
        recording.row(
            "annotations", end_ns, kind="summary", key=name, value=str(number), number=number, source="script"
        )
    is_timed = any(value.at_s is not None for value in record.values)
    recording.labels["times"] = (
        "counted back from the file's last change" if is_timed else "the file's last change; values had none"
    )
    recording.facts = {"job": recording.run, "world_size": None}
    if record.config:
        recording.facts["config"] = json_text(redact_names(record.config))


def add(record: TrainerValues, name: str, value: Any, step: int | None, at_s: float | None = None) -> bool:  # noqa: ANN401
    """Add a value if it is a number, and return whether it is. A number with an invalid name is refused."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        number = float(value)
    except OverflowError:
        return False
    if not 0 < len(name) <= LONGEST_NAME:
        record.refusals.append(Refusal("the name is empty or too long", name))
        return True
    record.values.append(Value(redacted_name(name, LONGEST_NAME), number, step, at_s))
    return True


def parse_csv(
    source: Source,
    record: TrainerValues,
    step_column: str,
    time_column: str = "",
    *,
    separator: str = ",",
    metric: str = "",
) -> None:
    """Add the numbers of a CSV file, with a metric in each column; empty cells are skipped.

    Parameters
    ----------
    metric
        Name of the last column in place of its header. Columns other than it and the step are then skipped.

    Raises
    ------
    SourceError
        There is no column of steps, or the file is too large.
    """
    text = source.read_all(MOST_BYTES).decode(errors="replace")
    rows = csv.reader(io.StringIO(text.replace("\0", "\ufffd"), newline=""), delimiter=separator)
    try:
        header = [name.strip() for name in next(rows, [])]
        if metric and header:
            header = [name if name == step_column else _SKIPPED for name in header[:-1]] + [metric]
        if step_column not in header:
            hint = "name the file that the trainer wrote"
            raise SourceError(f"no column {step_column}", where=f"{source.name}:1", hint=hint)
        for cells in rows:
            _add_row(record, header, cells, rows.line_num, (step_column, time_column))
    except csv.Error as error:
        where = f"{source.name}:{rows.line_num}"
        raise SourceError(f"not CSV ({error})", where=where, hint="copy it again") from error


def _add_row(record: TrainerValues, header: list[str], cells: list[str], line: int, columns: tuple[str, str]) -> None:
    """Add a row's numbers; `columns` are the names of the step's and the time's column, which may be empty."""
    step_column, time_column = columns
    named = {name: cell.strip() for name, cell in zip(header, cells, strict=False) if cell.strip()}
    named.pop(_SKIPPED, None)
    step_text = named.pop(step_column, "")
    step = _number(step_text)
    at_s = _number(named.pop(time_column, "")) if time_column else None
    if not named and (not step_text or step is not None):
        return
    if len(cells) > len(header) or step is None or not 0 <= step < 1 << 53 or step != int(step):
        record.refusals.append(Refusal(f"{step_column} is not an integer", ",".join(cells), line))
        return
    if at_s is not None and not 0 <= at_s < 1 << 32:
        at_s = None
    for name, cell in named.items():
        number = _number(cell, is_finite=False)
        if number is None:
            record.refusals.append(Refusal("a cell is not a number", f"{name}={cell}", line))
        else:
            add(record, name, number, int(step), at_s)


def yaml_beside(source: Source, name: str) -> dict[str, Any]:
    """Return the settings of a YAML file in the same folder; empty if it does not exist, or cannot be read."""
    path = f"{source.parent}/{name}"
    try:
        settings = read_yaml(source.fs.cat_file(path, end=1 << 20).decode())
    except (OSError, UnicodeDecodeError, FormatError):
        return {}
    return {str(key): value for key, value in settings.items()} if isinstance(settings, dict) else {}


def _number(text: str, *, is_finite: bool = True) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return None if is_finite and not math.isfinite(number) else number
