"""ClearML: reads the session of an offline task, a ZIP archive or a folder, or a task that a script exported.

    task.json        the task: Task.export_task(), settings, tags, artifacts
    metrics.jsonl    a list of events in each line: values, images, plots (of the session, or of ClearML's API)
    log.jsonl        a list of output lines in each line (likewise)
    scalars.json     Task.get_all_reported_scalars(), read if there are no events: title, series, x and y
    data/            files of the session

Source: clearml/task.py, clearml/backend_interface/metrics/events.py.
"""

import ast
import hashlib
import json
import mimetypes
import posixpath
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.assets.media_value import IMAGE
from ranklake.capture.common.values import json_text, redacted_name
from ranklake.capture.importers.formats import LONGEST_NAME, Format
from ranklake.capture.importers.run_files import OpenFiles, RunFiles, annotate, find_run_files
from ranklake.capture.importers.source import SourceError, StoredRun
from ranklake.capture.importers.units import moment_ns
from ranklake.capture.importers.wandb_values import number
from ranklake.capture.provenance.names import clean
from ranklake.redaction.redact import redact, redact_names, redact_uri

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun

_TASK: Final = "task.json"
_EVENTS, _LOG, _SCALARS = "metrics.jsonl", "log.jsonl", "scalars.json"
_SINGLE: Final = -(1 << 31)
"""Iteration of a value without a step (clearml/backend_interface/logger.py)."""
_MONITOR: Final = ":monitor:"
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_MS: Final = 10**6
_MAX_MS: Final = 1 << 42
_MAX_LINE_CHARACTERS: Final = 8_192
_END_EVENTS: Final = {
    "completed": ("run_end", "info"), "published": ("run_end", "info"), "closed": ("run_end", "info"),
    "stopped": ("run_end", "warning"), "failed": ("failure", "error"),
}  # fmt: skip


@dataclass
class ClearmlTask:
    """A task's files, the content of its ``task.json``, and the SHA-256 of everything imported, in hex."""

    files: RunFiles
    about: dict[str, Any]
    sha256: str

    def digest(self) -> str:
        """Return the SHA-256 of everything imported, in hex."""
        return self.sha256


def find(fs: Any, path: str) -> Iterator[StoredRun | SourceError]:  # noqa: ANN401 - a file system of fsspec
    """Yield the tasks in archives and folders.

    Raises
    ------
    SourceError
        There is no task.
    """
    if posixpath.basename(path) in {_EVENTS, _LOG, _SCALARS} and fs.isfile(path):
        path = posixpath.dirname(path)
    is_found = False
    for files in find_run_files(fs, path, (_TASK,), "ClearML"):
        if isinstance(files, SourceError):
            yield files
            continue
        try:
            with files.opened() as content:
                about = content.document(_TASK)
                digests = content.digests(_TASK, _EVENTS, _LOG, _SCALARS)
        except SourceError as error:
            yield error
            continue
        if not isinstance(about.get("id"), str) or not {"name", "project_name"} <= about.keys():
            continue
        is_found = True
        key = about["id"].removeprefix("offline-")
        title = clean(f"{about['name'] or 'task'}-{key[:8]}")
        record = ClearmlTask(files, about, hashlib.sha256("\0".join(digests).encode()).hexdigest())
        yield StoredRun(fs, files.path, 0, id=key, title=title, record=record)
    if not is_found:
        hint = "name an offline session, or a folder with task.json of Task.export_task()"
        raise SourceError("no task of ClearML", where=path, hint=hint)


def read(source: "StoredRun", recording: "ImportedRun") -> None:
    """Import a task; events that cannot be read are refused. Raises `SourceError`."""
    task: ClearmlTask = source.record
    reader = _Reader(task.about, recording)
    with task.files.opened() as files:
        for name in (_EVENTS, _LOG):
            for event, line in _events(files, name):
                reader.add(event, line, files)
        if files.source(_EVENTS) is None:
            reader.add_series(files)
        reader.end(files)


def _events(files: OpenFiles, name: str) -> Iterator[tuple[Any, int]]:
    """Yield the events of a file with their line numbers; a line that is not JSON is yielded as text."""
    source = files.source(name)
    for line in source.lines() if source else ():
        try:
            batch = json.loads(line.text) if line.text.strip() or line.flaw else []
        except (ValueError, RecursionError):
            batch = line.text
        for event in batch if isinstance(batch, list) else [batch]:
            yield event, line.number
    if source and source.cut:
        yield source.cut, 0


@dataclass
class _Reader:
    """Adds a task's events to a recording. Times are ms since 1970."""

    about: dict[str, Any]
    recording: "ImportedRun"
    first_ms: int | None = None
    last_ms: int | None = None
    host: str = ""
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, event: Any, line: int, files: OpenFiles) -> None:  # noqa: ANN401 - JSON
        """Add an event by its type."""
        at_ms = event.get("timestamp") if isinstance(event, dict) else None
        if not isinstance(at_ms, int) or isinstance(at_ms, bool) or not 0 < at_ms < _MAX_MS:
            self.recording.refuse("scalars", "the event has no time", json.dumps(event), line)
            return
        self.first_ms, self.last_ms = min(self.first_ms or at_ms, at_ms), max(self.last_ms or at_ms, at_ms)
        kind, step = event.get("type"), event.get("iter")
        name, value = _name(event.get("metric"), event.get("variant")), number(event.get("value"))
        if kind == "log":
            self._add_output(event, at_ms)
        elif not 0 < len(name) <= LONGEST_NAME:
            self.recording.refuse("scalars", "the name is empty or too long", json.dumps(event), line)
        elif kind == "training_stats_scalar" and value is not None:
            self._add_value(name, value, step, at_ms)
        elif kind == "training_debug_image":
            media_kind = IMAGE if str(mimetypes.guess_type(str(event.get("key")))[0]).startswith("image/") else ""
            name = redacted_name(name, LONGEST_NAME)
            self._add_file(name, event.get("url"), at_ms, files, media_kind, **_step(step))
        else:
            self.left_out[f"events {redacted_name(kind, 64)}"] += 1

    def _add_value(self, name: str, value: float, step: object, at_ms: int) -> None:
        """Add a value; values of monitors get no step, because their iterations are usually seconds."""
        columns = {} if name.startswith("system/") else _step(step)
        self.recording.unregistered(redacted_name(name, LONGEST_NAME), value, at_ms * _MS, **columns)

    def _add_output(self, event: dict[str, Any], at_ms: int) -> None:
        self.host = str(event.get("worker") or self.host)
        for line in str(event.get("msg") or "").split("\n"):
            if line.strip():
                message = redact(line[:_MAX_LINE_CHARACTERS])
                self.recording.row("logs", at_ms * _MS, message=message, severity_text=str(event.get("level") or ""))

    def _add_file(
        self,
        name: str,
        uri: object,
        at_ms: int,
        files: OpenFiles,
        media_kind: str = "",
        **columns: Any,  # noqa: ANN401
    ) -> None:
        """Add a file of the session, by its path below the session's folder, or a file on a server by its URI."""
        uri, folder = str(uri or ""), str(self.about.get("offline_folder") or "")
        path = uri.removeprefix(f"{folder}/") if folder else ""
        if "://" not in uri:
            files.add(self.recording, name, path or None, at_ms * _MS, media_kind, **columns)
            return
        facts: dict[str, Any] = {"kind": "other", "action": "created", "file_count": 1, "uri": redact_uri(uri)}
        facts["media_type"] = mimetypes.guess_type(uri)[0]
        self.recording.row("artifacts", at_ms * _MS, name=name, **(facts | columns))

    def add_series(self, files: OpenFiles) -> None:
        """Add the values of ``scalars.json``, which have steps but no times; they get the time of the task's end."""
        at_ms = self._moment_ms("completed") or self._moment_ms("last_update") or self._moment_ms("started")
        for title, series in files.document(_SCALARS).items():
            for variant, points in _mapping(series).items():
                name, xs, ys = _name(title, variant), *(_items(_mapping(points).get(axis)) for axis in ("x", "y"))
                for step, raw_value in zip(xs, ys, strict=False):
                    value = number(raw_value)
                    if at_ms is None or value is None or not 0 < len(name) <= LONGEST_NAME:
                        text = json.dumps([title, variant, step, raw_value])
                        self.recording.refuse("scalars", "the value has no number, name or time", text)
                        continue
                    self._add_value(name, value, step, at_ms)
                    self.recording.labels["times"] = "the task's end; values had none"

    def _moment_ms(self, name: str) -> int | None:
        at_ns = moment_ns(str(self.about.get(name) or ""))
        return None if at_ns is None else at_ns // _MS

    def end(self, files: OpenFiles) -> None:
        """Add annotations, artifacts, the end and facts of the task. Raises `SourceError` if it has no time."""
        about, recording = self.about, self.recording
        start_ms = self._moment_ms("started") or self.first_ms or self._moment_ms("created")
        end_ms = self._moment_ms("completed") or self.last_ms or start_ms
        if start_ms is None or end_ms is None:
            hint = "add events in metrics.jsonl, or started to its task.json"
            raise SourceError("the task has no time", where=str(about["name"]), hint=hint)
        tags = _items(about.get("tags"))
        annotate(recording, start_ms * _MS, name=about["name"], note=about.get("comment"), tags=tags)
        self._add_artifacts(files, end_ms)
        if (status := str(about.get("status"))) in _END_EVENTS:
            event, severity = _END_EVENTS[status]
            recording.row("events", end_ms * _MS, event=event, severity=severity,
                          attributes=json.dumps({"status": status}))  # fmt: skip
        recording.not_imported.update(self.left_out)
        recording.labels["clearml_id"] = redacted_name(about["id"], LONGEST_NAME)
        script = _mapping(about.get("script"))
        facts = {"host": self.host, "git_commit": script.get("version_num"),
                 "git_remote": redact_uri(str(script.get("repository") or ""))}  # fmt: skip
        facts = {name: redacted_name(value, LONGEST_NAME) for name, value in facts.items() if value}
        job = redacted_name(about["project_name"] or recording.run, LONGEST_NAME)
        recording.facts = {"job": job, "world_size": None, **facts}
        if config := _settings(about):
            recording.facts["config"] = json_text(redact_names(config))

    def _add_artifacts(self, files: OpenFiles, end_ms: int) -> None:
        """Add a task's artifacts and models; inputs have the action ``loaded``, others ``created``."""
        for artifact in _items(_mapping(self.about.get("execution")).get("artifacts")):
            item = _mapping(artifact)
            at_s, digest = item.get("timestamp"), str(item.get("hash"))
            at_ms = at_s * 1000 if isinstance(at_s, int) and 0 < at_s < _MAX_MS // 1000 else end_ms
            columns = {"action": "loaded" if item.get("mode") == "input" else "created"}
            if _HEX.fullmatch(digest):
                columns["sha256"] = digest
            name = redacted_name(item.get("key") or "artifact", LONGEST_NAME)
            self._add_file(name, item.get("uri"), at_ms, files, **columns)
        models = _mapping(self.about.get("models"))
        for side, action in (("input", "loaded"), ("output", "created")):
            for model in _items(models.get(side)):
                name = redacted_name(_mapping(model).get("name") or "model", LONGEST_NAME)
                about = json.dumps({"clearml_model": redacted_name(_mapping(model).get("model"), LONGEST_NAME)})
                self.recording.row("artifacts", end_ms * _MS, name=name, kind="model", action=action, attributes=about)


def _mapping(value: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return value if isinstance(value, dict) else {}


def _items(value: Any) -> list[Any]:  # noqa: ANN401 - JSON
    return value if isinstance(value, list) else []


def _name(metric: object, variant: object) -> str:
    """Return a metric's name: ``title/series``, ``title`` if both are equal, ``system/series`` for monitors."""
    title, series = (str(part) if isinstance(part, str) else "" for part in (metric, variant))
    if title.startswith(_MONITOR):
        return f"system/{series}"
    return title if title == series else f"{title}/{series}"


def _step(value: object) -> dict[str, int]:
    if not isinstance(value, int | float) or not 0 <= value < 1 << 63 or value != int(value):
        return {}
    return {"step": int(value)}


def _settings(about: dict[str, Any]) -> dict[str, Any]:
    """Return settings by ``section/name``, as ClearML names them."""
    config: dict[str, Any] = {}
    for section, settings in _mapping(about.get("hyperparams")).items():
        for name, setting in _mapping(settings).items():
            config[f"{section}/{name}"] = _setting_value(_mapping(setting).get("value"), _mapping(setting).get("type"))
    for name, setting in _mapping(about.get("configuration")).items():
        config[f"configuration/{name}"] = _mapping(setting).get("value")
    return config


def _setting_value(value: Any, kind: object) -> Any:  # noqa: ANN401 - JSON
    """Convert the text of a setting to its type; the text itself if that fails, or the type is another.

    >>> _setting_value("0.0003", "float"), _setting_value("[1, 2]", "list/int"), _setting_value("adam", "str")
    (0.0003, [1, 2], 'adam')
    """
    name = str(kind).partition("/")[0]  # such as list/float
    if name not in {"int", "float", "bool", "list", "tuple", "dict"} or not isinstance(value, str):
        return value
    try:
        return float(value) if name == "float" else ast.literal_eval(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return value


FORMAT: Final = Format(
    summary="tasks of ClearML: offline sessions and exports",
    recognises="archives and folders with task.json",
    read=read,
    table="scalars",
    mark=re.compile(
        rb'\A(?:\[?\{"timestamp": ?\d+, ?"type": ?"(?:training_|plot|log)|'
        rb'\s*\{(?=[\s\S]*"project_name"\s*:)(?=[\s\S]*"(?:hyperparams|execution|offline_folder)"\s*:)|'
        rb"(?=PK\x03\x04)[\s\S]*PK\x03\x04[\s\S]{26}task\.json)"
    ),
    by_file=True,
    find=find,
)
