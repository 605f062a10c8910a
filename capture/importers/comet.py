"""Comet: reads the archive of an offline experiment, or an unpacked one.

    <experiment>.zip: experiment.json      project, tags, start and end
                      messages.json        a message in each line: metric, parameter, other, uploaded file, output
                      tmp…                 the uploaded files

Source: comet_ml/messages.py, comet_ml/data_structure.py. A resumed experiment has an archive for each part.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ranklake.capture.assets.media_value import IMAGE, TEXT
from ranklake.capture.common.values import json_text, redacted_name
from ranklake.capture.histogram import Histogram, histogram_of_bins
from ranklake.capture.importers.formats import LONGEST_NAME, Format
from ranklake.capture.importers.run_files import OpenFiles, RunFiles, annotate, find_run_files
from ranklake.capture.importers.source import SourceError, StoredRun
from ranklake.capture.importers.wandb_values import number
from ranklake.capture.provenance.names import clean
from ranklake.redaction.redact import redact, redact_names, redact_uri

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun

_MESSAGES: Final = "messages.json"
_ABOUT: Final = "experiment.json"
_COMET_PARAMETERS: Final = frozenset({"curr_step", "curr_epoch"})
_COMET_OTHERS: Final = frozenset({"Name", "hasNestedParams", "offline_experiment"})
_MEDIA_KINDS: Final = {"visualization": IMAGE, "text-sample": TEXT}
_FAILED: Final = "error detected in the user script"
_ENVIRONMENT: Final = frozenset({"close", "file_name", "installed_packages", "os_packages", "log_dependency"})
"""Messages about a script's environment for which `runs` has no columns."""
_MS: Final = 10**6
_MAX_MS: Final = 1 << 42
_MAX_BINS: Final = 10_000
_MAX_LINE_CHARACTERS: Final = 8_192


@dataclass
class CometRun:
    """An experiment: files and ``experiment.json`` of each part, by the part's digest, in the order of their starts."""

    id: str
    parts: dict[str, tuple[RunFiles, dict[str, Any]]] = field(default_factory=dict)

    @property
    def about(self) -> dict[str, Any]:
        """Content of the last part's ``experiment.json``."""
        return next(reversed(self.parts.values()))[1]

    def digest(self) -> str:
        """Return the SHA-256 of the parts' digests, in hex."""
        return hashlib.sha256("\0".join(self.parts).encode()).hexdigest()


def find(fs: Any, path: str) -> Iterator[StoredRun | SourceError]:  # noqa: ANN401 - a file system of fsspec
    """Yield the experiments in archives and folders.

    Raises
    ------
    SourceError
        There is no experiment.
    """
    parts: list[tuple[int, str, RunFiles, dict[str, Any]]] = []
    for files in find_run_files(fs, path, (_MESSAGES,), "Comet"):
        if isinstance(files, SourceError):
            yield files
            continue
        try:
            with files.opened() as content:
                about = content.document(_ABOUT)
                digest = "\0".join(content.digests(_MESSAGES, _ABOUT))
                parts.append((_time_ms(about.get("start_time")) or 0, digest, files, about))
        except SourceError as error:
            yield error
    runs: dict[str, CometRun] = {}
    for _, digest, files, about in sorted(parts, key=lambda part: part[:2]):
        stem = files.path.rpartition("/")[2].removesuffix(".zip")
        key = str(about.get("offline_id") or stem)
        runs.setdefault(key, CometRun(key)).parts.setdefault(digest, (files, about))
    for key, run in runs.items():
        title = clean(f"{run.about.get('project_name') or 'experiment'}-{key[:8]}")
        yield StoredRun(fs, path, 0, id=key, title=title, record=run)


def read(source: "StoredRun", recording: "ImportedRun") -> None:
    """Import an experiment; messages that cannot be read are refused. Raises `SourceError`."""
    run: CometRun = source.record
    reader = _Reader(recording)
    for files, about in run.parts.values():
        reader.last_ms = _time_ms(about.get("start_time")) or reader.last_ms
        reader.first_ms = reader.first_ms or reader.last_ms
        with files.opened() as content:
            messages = content.source(_MESSAGES)
            for line in messages.lines() if messages else ():
                if line.text.strip() or line.flaw:
                    flaw = line.flaw or "not a message of Comet"
                    reader.add(_payload(line.text), flaw, line.text, line.number, content)
            if messages and messages.cut:
                recording.refuse("scalars", messages.cut, "")
        reader.last_ms = _time_ms(about.get("stop_time")) or reader.last_ms
    reader.end(run)


def _payload(text: str) -> dict[str, Any]:
    """Return a message's payload with the message's `type`; empty if the text is no message."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    payload = message.get("payload") if isinstance(message, dict) else None
    if not isinstance(payload, dict):
        return {}
    return {name: value for name, value in payload.items() if value is not None} | {"type": message.get("type")}


def _time_ms(value: Any) -> int | None:  # noqa: ANN401 - JSON
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MAX_MS else None


@dataclass
class _Reader:
    """Adds an experiment's messages to a recording. Times are ms since 1970.

    A message without a time gets that of the last message with one.
    """

    recording: "ImportedRun"
    first_ms: int | None = None
    last_ms: int | None = None
    name: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    output: dict[str, str] = field(default_factory=dict)

    def add(self, message: dict[str, Any], flaw: str, text: str, line: int, files: OpenFiles) -> None:
        """Add a message according to its fields, because releases name types differently.

        An empty message is refused with `flaw` as the reason.
        """
        own_ms = _time_ms(message.get("local_timestamp"))
        at_ms = own_ms or self.last_ms
        if own_ms is not None:
            self.first_ms, self.last_ms = min(self.first_ms or own_ms, own_ms), own_ms
        output = message.get("output", message.get("stdout"))
        has_file = isinstance(message.get("file_path", message.get("remote_uri")), str)
        metric = message.get("metric")
        if not message:
            self.recording.refuse("scalars", flaw, text, line)
        elif not (isinstance(metric, dict) or has_file or isinstance(output, str)):
            self._add_fact(message)
        elif at_ms is None:
            self.recording.refuse("scalars", "the message has no time", text, line)
        elif isinstance(metric, dict):
            self._add_metric(metric, message.get("context"), at_ms, text, line)
        elif has_file:
            self._add_file(message, at_ms, files)
        else:
            self._add_output("stderr" if message.get("stderr") is True else "stdout", str(output), at_ms)

    def _add_fact(self, message: dict[str, Any]) -> None:
        """Keep a setting, a summary value or a fact of the experiment; old releases nest some of these fields."""
        setting, other = message.get("param", message.get("params")), message.get("log_other", message)
        details, git = message.get("env_details", message), message.get("git_metadata", message.get("git_meta"))
        if isinstance(setting, dict):
            if (name := str(setting.get("paramName"))) not in _COMET_PARAMETERS:
                self.config[_in_context(message.get("context"), name)] = setting.get("paramValue")
        elif isinstance(other, dict) and "key" in other:
            self.others[str(other["key"])] = other.get("value", other.get("val"))
        elif isinstance(details, dict) and "hostname" in details:
            self.facts |= {"host": details["hostname"], "user": details.get("user")}
        elif isinstance(git, dict):
            self.facts |= {"git_commit": git.get("parent"), "git_remote": redact_uri(str(git.get("origin") or ""))}
        elif str(message.get("type")) not in _ENVIRONMENT:
            self.left_out[f"messages {redacted_name(message.get('type'), 64)}"] += 1

    def _add_metric(self, metric: dict[str, Any], context: object, at_ms: int, text: str, line: int) -> None:
        name, value = metric.get("metricName"), number(metric.get("metricValue"))
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
            self.recording.refuse("scalars", "the name is empty or too long", text, line)
        elif value is None:
            self.left_out["values that are not numbers"] += 1
        else:
            name = f"system/{name.removeprefix('sys.')}" if name.startswith("sys.") else _in_context(context, name)
            name = redacted_name(name, LONGEST_NAME)
            self.recording.unregistered(name, value, at_ms * _MS, **_step(metric))

    def _add_file(self, message: dict[str, Any], at_ms: int, files: OpenFiles) -> None:
        """Add an uploaded file: an image or text to `media`, a histogram to `distributions`, others to `artifacts`."""
        about = message.get("additional_params")
        about = about if isinstance(about, dict) else {}
        kind = str(message.get("upload_type") or about.get("type") or "asset")
        name = about.get("figName") or about.get("fileName") or kind
        name = kind if name == "auto-generated-in-the-backend" else redacted_name(name, LONGEST_NAME)
        at_ns, columns = at_ms * _MS, _step(about)
        path = message.get("file_path")
        if kind == "source_code":
            self.left_out["files of code"] += 1
        elif kind == "histogram3d" and isinstance(path, str):
            histogram = _histogram(files, path)
            if histogram is None:
                self.left_out["histograms that cannot be read"] += 1
            else:
                self.recording.distribution(name, histogram, at_ns, sum=None, **columns)
        elif path is None:
            uri = redact_uri(str(message.get("remote_uri")))
            self.recording.row("artifacts", at_ns, name=name, kind="other", action="created", uri=uri, **columns)
        else:
            columns |= {"kind": "model"} if kind == "model-element" else {}
            files.add(self.recording, name, path, at_ns, _MEDIA_KINDS.get(kind, ""), **columns)

    def _add_output(self, stream: str, output: str, at_ms: int) -> None:
        """Add the complete lines of an output stream, and keep the rest for the next message."""
        *lines, rest = (self.output.get(stream, "") + output).split("\n")
        self.output[stream] = rest[:_MAX_LINE_CHARACTERS]
        for line in lines:
            if line.strip():
                self.recording.row("logs", at_ms * _MS, message=redact(line[:_MAX_LINE_CHARACTERS]), stream=stream)

    def end(self, run: CometRun) -> None:
        """Add annotations, the end and facts of the experiment. Raises `SourceError` if it has no time."""
        if self.first_ms is None or self.last_ms is None:
            raise SourceError("the experiment has no time", where=run.id[:8], hint=f"restore its {_ABOUT}")
        recording, about, start_ns = self.recording, run.about, self.first_ms * _MS
        for stream in list(self.output):
            self._add_output(stream, "\n", self.last_ms)
        tags = about.get("tags") if isinstance(about.get("tags"), list) else []
        annotate(recording, start_ns, name=self.others.get("Name"), tags=sorted(map(str, tags or ())))
        for key, value in sorted(redact_names(self.others).items()):
            if key not in _COMET_OTHERS and key.strip():
                text = redacted_name(value, LONGEST_NAME)
                recording.row("annotations", self.last_ms * _MS, kind="summary", key=key[:LONGEST_NAME], value=text,
                              number=number(value), source="script")  # fmt: skip
        if _time_ms(about.get("stop_time")):
            is_failed = _FAILED in str(about.get("customer_error_message"))
            event, severity = ("failure", "error") if is_failed else ("run_end", "info")
            recording.row("events", self.last_ms * _MS, event=event, severity=severity)
        recording.not_imported.update(self.left_out)
        recording.labels["comet_id"] = redacted_name(run.id, LONGEST_NAME)
        facts = {name: redacted_name(value, LONGEST_NAME) for name, value in self.facts.items() if value}
        job = redacted_name(about.get("project_name") or recording.run, LONGEST_NAME)
        recording.facts = {"job": job, "world_size": None, **facts}
        if self.config:
            recording.facts["config"] = json_text(redact_names(self.config))


def _step(fields: dict[str, Any]) -> dict[str, Any]:
    step = fields.get("step")
    is_step = isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 1 << 63
    return {"step": step} if is_step and isinstance(step, int) else {}


def _in_context(context: object, name: str) -> str:
    """Return a name with its context as prefix, as Comet shows it."""
    return f"{context}_{name}" if context else name


def _histogram(files: OpenFiles, path: str) -> Histogram | None:
    """Read a histogram from its file; None if it cannot be read.

    Bins are bounded by ``offset ± start * step ** k``, k from zero. The bin before those of negative values has no
    lower bound. Zeros are counted in the first bin of positive values.
    """
    try:
        about = files.document(path)
        start, stop, step, offset = (float(about[name]) for name in ("start", "stop", "step", "offset"))
        bounds, bound = [0.0], start
        while offset + bound <= stop and len(bounds) < _MAX_BINS:
            bounds.append(bound)
            bound *= step
        bins = [_bin(bounds, index - len(bounds)) for index, _ in about["index_values"]]
        lows, highs = np.array(bins, np.float64).T + offset
        return histogram_of_bins(lows, highs, np.array([count for _, count in about["index_values"]], np.float64))
    except (SourceError, LookupError, TypeError, ValueError, OverflowError):
        return None


def _bin(bounds: list[float], index: int) -> tuple[float, float]:
    """Return the bounds of a bin; the bin of zeros has index 0. Raises `LookupError`, `TypeError`."""
    if index == 0:
        return 0.0, 0.0
    if index > 0:
        return bounds[index], bounds[index + 1]
    return -bounds[-index], -bounds[-index - 1]


FORMAT: Final = Format(
    summary="offline experiments of Comet, EXPERIMENT.zip",
    recognises="archives and folders with messages.json",
    read=read,
    table="scalars",
    mark=re.compile(
        rb'\A(?:\{"payload": ?\{[^\n]*\}, ?"type": ?"|\{"type": ?"[a-z_]+", ?"payload": ?\{|'
        rb"(?=PK\x03\x04)[\s\S]*PK\x03\x04[\s\S]{26}(?:messages|experiment)\.json)"
    ),
    by_file=True,
    find=find,
)
