"""Prometheus: reads pages in its text format, and JSON responses of its query API (vectors and matrices).

Metrics of dcgm-exporter become rows of ``gpu_samples``, by the mapping of the agent's sampler. Other metrics become
scalars ``prometheus/<name>{<labels>}``.
A sample without a time gets that of the file's last change. A page that ends with
``# EOF`` is OpenMetrics, whose times are seconds (https://prometheus.io/docs/specs/om/open_metrics_spec/).
"""

import json
import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.importers.formats import Format
from ranklake.capture.importers.source import SourceError
from ranklake.capture.samplers.dcgm import MetricMapping, load_table, readings
from ranklake.capture.samplers.exposition import ExposedSample, NotExpositionError, Page, parse
from ranklake.capture.samplers.prometheus import metric_name
from ranklake.redaction.redact import redact_names

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Source

_MAX_BYTES: Final = 512 << 20
_TYPE: Final = re.compile(r"#[ \t]+TYPE[ \t]+(\S+)[ \t]+(counter|gauge|histogram|summary|untyped)[ \t]*")
_LABELS: Final = r'\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\}'
_OPEN_METRICS_SAMPLE: Final = re.compile(
    rf"([a-zA-Z_:][\w:]*(?:{_LABELS})?[ \t]+\S+)(?:[ \t]+(-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?))?(?:[ \t]+#[ \t]+\{{.*)?"
)
"""A sample of OpenMetrics: name, labels and value; time in s; an exemplar, which is ignored."""
_MAX_NAME_CHARACTERS: Final = 4096
_MAX_MS: Final = 1 << 42


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import a page or a response. Invalid lines and values are refused.

    Raises
    ------
    SourceError
        The file is a JSON document of another kind, or neither samples nor file have a time.
    """
    table = load_table()
    if source.head().lstrip().startswith(b"{"):
        _read_response(source, recording, table)
    else:
        _read_page(source, recording, table)
    recording.facts = {"job": recording.run, "world_size": None}


def _read_page(source: "Source", recording: "ImportedRun", table: dict[str, MetricMapping]) -> None:
    page = Page()
    is_open_metrics = _is_open_metrics(source)
    for line in source.lines():
        text = line.text.strip()
        declared = _TYPE.fullmatch(text)
        if declared:
            page.types[declared[1]] = declared[2]
            if is_open_metrics and declared[2] == "counter":
                page.types[f"{declared[1]}_total"] = "counter"
        if is_open_metrics and (sample := _OPEN_METRICS_SAMPLE.fullmatch(text)):
            text = sample[1] if sample[2] is None else f"{sample[1]} {round(float(sample[2]) * 1000)}"
        if not text.startswith("#") and (text or line.flaw):
            try:
                if line.flaw:
                    raise NotExpositionError(line.flaw)  # noqa: TRY301 - refused like any other
                page.samples += parse(f"{text}\n").samples
            except NotExpositionError:
                recording.refuse(
                    "scalars", line.flaw or "the line is not in Prometheus' text format", text, line.number
                )
    is_untimed = any(sample.time_ms is None for sample in page.samples)
    changed_ms = source.changed_ms() if is_untimed else 0
    _add_samples(recording, page, table, changed_ms)


def _is_open_metrics(source: "Source") -> bool:
    """Whether a page has the end mark of OpenMetrics. Reads the whole page."""
    with source.first_look():
        return any(line.text.strip() == "# EOF" for line in source.lines())


def _add_samples(recording: "ImportedRun", page: Page, table: dict[str, MetricMapping], changed_ms: int) -> None:
    """Add a page's samples: a row for each device and time, and scalars."""
    device_samples: dict[tuple[int, str], list[ExposedSample]] = {}
    for sample in page.samples:
        at_ms = changed_ms if sample.time_ms is None else sample.time_ms
        if not 0 < at_ms < _MAX_MS:
            recording.refuse("scalars", "not a time", sample.name)
        elif sample.name in table and (sample.labels.get("UUID") or sample.labels.get("gpu")):
            # without a UUID, the device number is unique only within one scraped instance
            instance = "" if sample.labels.get("UUID") else sample.labels.get("instance", "")
            device_samples.setdefault((at_ms, instance), []).append(sample)
        else:
            name = str(redact_names(metric_name(sample)))
            if len(name) > _MAX_NAME_CHARACTERS:
                recording.refuse("scalars", "the name is too long", sample.name)
                continue
            kind = page.kind(sample.name)
            recording.unregistered(name, sample.value, at_ms * 10**6, kind=kind)
    for (at_ms, _), samples in sorted(device_samples.items()):
        for _, reading in readings(samples, table):
            recording.row("gpu_samples", at_ms * 10**6, **reading.row())


def _read_response(source: "Source", recording: "ImportedRun", table: dict[str, MetricMapping]) -> None:
    try:
        data = json.loads(source.read_all(_MAX_BYTES))["data"]
        series, is_supported = data["result"], data["resultType"] in {"matrix", "vector"}
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        hint = "save the complete response of /api/v1/query_range"
        raise SourceError("not a response of Prometheus' API", where=source.name, hint=hint) from error
    if not is_supported or not isinstance(series, list):
        raise SourceError(
            "the response is neither matrix nor vector", where=source.name, hint="query a range or an instant"
        )
    page = Page()
    for item in series:
        labels = item.get("metric") if isinstance(item, dict) else None
        if not isinstance(labels, dict):
            recording.refuse("scalars", "the series has no labels", json.dumps(item))
            continue
        name = str(labels.get("__name__", "query"))
        other_labels = {str(key): str(value) for key, value in labels.items() if key != "__name__"}
        for histogram in [*(item.get("histograms") or ()), *([item["histogram"]] if "histogram" in item else [])]:
            recording.refuse("scalars", "native histograms are not supported", json.dumps(histogram))
        for point in _points(item):
            at_s, value = _number(point, 0), _number(point, 1)
            if at_s is None or value is None or not math.isfinite(at_s):
                recording.refuse("scalars", "not a time and a number", json.dumps(point))
            else:
                page.samples.append(ExposedSample(name, other_labels, value, round(at_s * 1000)))
    _add_samples(recording, page, table, 0)


def _points(series: dict[str, Any]) -> Iterator[Any]:
    values = series.get("values")
    yield from values if isinstance(values, list) else [series["value"]] if "value" in series else []


def _number(point: Any, index: int) -> float | None:  # noqa: ANN401 - JSON
    try:
        return float(point[index])
    except (TypeError, ValueError, IndexError, KeyError):
        return None


_SAMPLE: Final = re.compile(
    rb"#.*|[a-zA-Z_:][\w:]*(?<!:)(?:\{.*\})?[ \t]+[-+]?(?:[\d.][\d.eE+-]*|Inf|NaN)(?:[ \t]+[-\d.]+)?(?: #.*)?"
)
_MIN_RATIO: Final = 0.9


def _fills(lines: list[bytes]) -> bool:
    return sum(_SAMPLE.fullmatch(line.rstrip()) is not None for line in lines) >= _MIN_RATIO * len(lines)


FORMAT: Final = Format(
    summary="pages in Prometheus' text format, and responses of its query API",
    recognises="lines such as 'name{label=\"…\"} 1.5', or JSON with status and data",
    read=read,
    table="scalars",
    mark=re.compile(
        rb"\A\s*\{\s*\"(?:status|data)\"|^# (?:HELP|TYPE) |^[a-zA-Z_:][\w:]*(?<!:)(?:\{[^\n]*\})? +[-+.\dIiNn]",
        re.MULTILINE,
    ),
    own_run=False,
    by_file=True,
    by_name=True,
    fills=_fills,
)
