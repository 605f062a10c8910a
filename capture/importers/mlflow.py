"""MLflow: reads the runs of its file store (``mlruns/``), or of its SQL store in SQLite.

Parameters become the config of ``runs``, metrics scalars, and name, tags and note annotations. Files and registered
models become artifacts by reference, without a copy.
"""

import json
import math
import mimetypes
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.common.values import redacted_name, redacted_text
from ranklake.capture.importers.formats import LONGEST_NAME, Format
from ranklake.capture.importers.mlflow_run import DELETED, ArtifactFile, MlflowRun, Point
from ranklake.capture.importers.mlflow_stores import FileStore, TableStore
from ranklake.capture.importers.source import SourceError, StoredRun
from ranklake.capture.importers.sqlite_file import SQLITE
from ranklake.capture.importers.units import YEAR_2000_NS
from ranklake.capture.provenance.names import clean
from ranklake.redaction.redact import redact_names, redact_uri

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun

_PARENT: Final = "mlflow.parentRunId"
_NOTE: Final = "mlflow.note.content"
_GIT: Final = {
    "mlflow.source.git.commit": "git_commit",
    "mlflow.source.git.branch": "git_branch",
    "mlflow.source.git.repoURL": "git_remote",
}
_MLFLOW_TAGS: Final = frozenset({_NOTE, "mlflow.runName", "mlflow.user", *_GIT})
"""Tags of MLflow that are imported into columns."""
_MS: Final = 10**6
_MAX_KEY_CHARACTERS: Final = 512
_MAX_TEXT_CHARACTERS: Final = 8_192
_MAX_PATH_CHARACTERS: Final = 1_024
_MODEL: Final = "MLmodel"
_CHECKPOINTS: Final = re.compile(r"\.(?:ckpt|pt|pth|safetensors)$|(?:^|/)checkpoint")


def find(fs: Any, path: str) -> Iterator[StoredRun | SourceError]:  # noqa: ANN401 - a file system of fsspec
    """Yield the runs of a store. The path is a folder of a file store or of a project, or a SQLite file.

    Deleted runs are yielded with `left_out` set, and an unreadable run as an error.

    Raises
    ------
    SourceError
        There is no store of MLflow.
    """
    store = _store(fs, path)
    runs = list(store.runs())
    titles = {run.id: clean(run.title) for run in runs if isinstance(run, MlflowRun)}
    if not runs:
        raise SourceError("the store of MLflow has no runs", where=path, hint="name another")
    for run in runs:
        if isinstance(run, SourceError):
            yield run
            continue
        if (parent := run.tags.get(_PARENT, "")) in titles:
            run.parent = titles[parent]
        left_out = DELETED if run.is_deleted else ""
        yield StoredRun(fs, path, 0, id=run.id, title=titles[run.id], record=run, left_out=left_out)


def _store(fs: Any, path: str) -> FileStore | TableStore:  # noqa: ANN401 - a file system of fsspec
    is_local = "file" in fs.protocol
    if fs.isdir(path):
        root = path.rstrip("/")
        tables, files = f"{root}/mlflow.db", FileStore(fs, f"{root}/mlruns")
        if FileStore(fs, root).is_store():
            return FileStore(fs, root)
        if is_local and fs.isfile(tables):
            return TableStore(Path(tables))
        if fs.isdir(files.root) and files.is_store():
            return files
        raise SourceError("no store of MLflow", where=path, hint="name the folder mlruns, or the file mlflow.db")
    if fs.cat_file(path, end=len(SQLITE)) == SQLITE:
        if not is_local:
            raise SourceError("a SQLite file that is not on this machine", where=path, hint="copy it here first")
        return TableStore(Path(path))
    if posixpath.basename(path) == "meta.yaml":
        return FileStore(fs, posixpath.dirname(path))
    raise SourceError("no store of MLflow", where=path, hint="name the folder mlruns, or the file mlflow.db")


def read(source: "StoredRun", recording: "ImportedRun") -> None:
    """Import a run; values that cannot be read are refused.

    Raises
    ------
    SourceError
        The run has no time.
    """
    run: MlflowRun = source.record
    start_ns = _start_ns(run)
    for flaw in run.flaws:
        recording.refuse("annotations", flaw.reason, f"{flaw.file}: {flaw.text}", flaw.line)
    last_ns = _add_points(run, recording, start_ns)
    end_ns = run.end_ms * _MS if run.end_ms is not None else None
    _add_annotations(run, recording, start_ns)
    _add_artifacts(run, recording, end_ns or last_ns)
    _add_end(run, recording, end_ns if end_ns is not None else last_ns)
    source_name = run.tags.get("mlflow.source.name")
    recording.labels |= {"mlflow_run_id": run.id} | ({"mlflow_source": source_name} if source_name else {})
    if run.parent:
        recording.labels["parent_run"] = f"{recording.run.removesuffix(source.title)}{run.parent}"
    recording.not_imported.update(run.others)
    recording.labels = {name: redacted_name(text, _MAX_TEXT_CHARACTERS) for name, text in recording.labels.items()}
    git = {column: run.tags[tag] for tag, column in _GIT.items() if run.tags.get(tag)}
    if "git_remote" in git:
        git["git_remote"] = redact_uri(git["git_remote"])
    user = {"user": redacted_name(run.user, _MAX_KEY_CHARACTERS)} if run.user else {}
    job = redacted_name(run.experiment, _MAX_KEY_CHARACTERS) or recording.run
    recording.facts = {"job": job, "world_size": None, **user, **git}
    if run.params:
        config = redact_names({name: _parameter_value(text) for name, text in run.params.items()})
        recording.facts["config"] = json.dumps(config, sort_keys=True)


def _start_ns(run: MlflowRun) -> int:
    if run.start_ms is not None and run.start_ms * _MS >= YEAR_2000_NS:
        return run.start_ms * _MS
    times = [point.at_ms * _MS for point in run.points() if isinstance(point, Point)]
    start = min((time for time in times if time >= YEAR_2000_NS), default=None)
    if start is None:
        raise SourceError("the run has no time", where=run.id, hint="restore start_time in its meta.yaml")
    return start


def _add_points(run: MlflowRun, recording: "ImportedRun", start_ns: int) -> int:
    """Add metrics, and return the time of the last value, ns since 1970."""
    last_ns, untimed = start_ns, 0
    for number, point in enumerate(run.points(), 1):
        if not isinstance(point, Point):
            recording.refuse("scalars", point.reason, f"{point.file}: {point.text}", point.line)
        elif not 0 < len(point.name) <= LONGEST_NAME:
            recording.refuse("scalars", "the name is empty or too long", point.name, number)
        elif not 0 <= point.step < 1 << 63:
            recording.refuse("scalars", "the step is below 0 or above 64 bits", f"{point.name} {point.step}", number)
        else:
            at_ns = point.at_ms * _MS
            if not YEAR_2000_NS <= at_ns < 1 << 62:
                at_ns, untimed = start_ns, untimed + 1
            last_ns = max(last_ns, at_ns)
            recording.unregistered(point.name, point.value, at_ns, step=point.step)
    if untimed:
        recording.labels["times"] = f"{untimed} values without a time have the run's start"
    return last_ns


def _add_annotations(run: MlflowRun, recording: "ImportedRun", at_ns: int) -> None:
    rows: list[dict[str, Any]] = []
    if name := " ".join(redacted_name(run.name, _MAX_KEY_CHARACTERS).split()):
        rows.append({"kind": "name", "value": name})
    if note := redacted_text(run.tags.get(_NOTE, ""), _MAX_TEXT_CHARACTERS):
        rows.append({"kind": "note", "text": note})
    for key, value in sorted(redact_names(dict(run.tags)).items()):
        if key not in _MLFLOW_TAGS and key.strip():
            rows.append(
                {
                    "kind": "tag",
                    "key": key[:_MAX_KEY_CHARACTERS],
                    "value": redacted_name(value, _MAX_TEXT_CHARACTERS) or None,
                }
            )
    for row in rows:
        recording.row("annotations", at_ns, source="script", **row)


def _add_artifacts(run: MlflowRun, recording: "ImportedRun", end_ns: int) -> None:
    models = {posixpath.dirname(file.path) for file in run.artifacts if posixpath.basename(file.path) == _MODEL}
    for file in run.artifacts:
        at_ns = file.at_ms * _MS if file.at_ms is not None else end_ns
        recording.row(
            "artifacts", at_ns, name=redacted_name(file.path, _MAX_PATH_CHARACTERS), kind=_kind(file, models),
            action="created", uri=redact_uri(file.uri), bytes=file.size_bytes, file_count=1,
            media_type=mimetypes.guess_type(file.path)[0],
        )  # fmt: skip
    if not run.artifacts and "://" in run.artifact_uri and not run.artifact_uri.startswith("file:"):
        about = json.dumps({"files": "not listed: they are in another store"})
        recording.row(
            "artifacts", end_ns, name="artifacts", kind="other", action="created", uri=redact_uri(run.artifact_uri),
            attributes=about,
        )  # fmt: skip
    for model in run.models:
        at_ns = model.at_ms * _MS if model.at_ms is not None else end_ns
        name, uri = redacted_name(model.model, _MAX_PATH_CHARACTERS), redact_uri(model.uri)
        for tag in (f"version {model.version}", *model.tags):
            text = redacted_name(tag, _MAX_KEY_CHARACTERS)
            recording.row("artifacts", at_ns, name=name, kind="model", action="tagged", uri=uri, tag=text)


def _kind(file: ArtifactFile, models: set[str]) -> str:
    if any(file.path.startswith(f"{folder}/" if folder else "") for folder in models):
        return "model"
    return "checkpoint" if _CHECKPOINTS.search(file.path) else "other"


def _add_end(run: MlflowRun, recording: "ImportedRun", at_ns: int) -> None:
    """Add the event of a run's end, unless its status in MLflow is running or scheduled."""
    ends = {"FINISHED": ("run_end", "info"), "FAILED": ("failure", "error"), "KILLED": ("preemption", "warning")}
    if run.status in ends:
        event, severity = ends[run.status]
        about = json.dumps({"mlflow_status": run.status})
        recording.row("events", at_ns, event=event, severity=severity, attributes=about)


def _parameter_value(text: str) -> Any:  # noqa: ANN401 - JSON
    """Convert the text of a parameter back to a number or bool if Python would write it so; else return the text.

    >>> [_parameter_value("0.001"), _parameter_value("007"), _parameter_value("True"), _parameter_value("1e-05")]
    [0.001, '007', True, 1e-05]
    """
    if text in {"True", "False"}:
        return text == "True"
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if str(value) == text and math.isfinite(value) and abs(value) < 1 << 63:
            return value
    return text[:_MAX_TEXT_CHARACTERS]


FORMAT: Final = Format(
    summary="runs of MLflow, mlruns/ or mlflow.db",
    recognises="folders with meta.yaml, or a SQLite file with its tables",
    read=read,
    table="scalars",
    mark=re.compile(rb"^artifact_(?:uri|location): "),
    by_file=True,
    find=find,
)
