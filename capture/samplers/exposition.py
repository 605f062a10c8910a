"""Exposition: a strict parser of the Prometheus text format, version 0.0.4, which refuses malformed pages.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/. The parser of prometheus_client cannot be used: it
renames counters without ``_total``, such as DCGM's, and accepts truncated pages.
"""

import re
from dataclasses import dataclass, field
from typing import Final

_NAME: Final = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_SAMPLE: Final = re.compile(rf"({_NAME})[ \t]*(\{{.*\}})?[ \t]*([^ \t{{}}]+)(?:[ \t]+(-?\d+))?[ \t]*")
_LABEL: Final = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\\n]|\\.)*)"[ \t]*(,|$)')
_TYPE: Final = re.compile(rf"#[ \t]+TYPE[ \t]+({_NAME})[ \t]+(counter|gauge|histogram|summary|untyped)[ \t]*")
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf|infinity|nan)", re.IGNORECASE)
_ESCAPES: Final = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
_PARTS: Final = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}


class NotExpositionError(ValueError):
    """A page is not in the format. The message has the line number, but no content of the page."""


@dataclass(frozen=True, slots=True)
class ExposedSample:
    """One sample of a page. `time_ms` is in ms since 1970; None if the page does not have it."""

    name: str
    labels: dict[str, str]
    value: float
    time_ms: int | None = None


@dataclass(slots=True)
class Page:
    """A parsed page: samples in order, and types of metrics by name."""

    samples: list[ExposedSample] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)

    def kind(self, name: str) -> str:
        """Return the kind of a sample's metric: ``counter`` or ``gauge``."""
        if self.types.get(name) == "counter":
            return "counter"
        for type_, suffixes in _PARTS.items():
            if any(name.endswith(end) and self.types.get(name.removesuffix(end)) == type_ for end in suffixes):
                return "counter"
        return "gauge"


def parse(text: str) -> Page:
    """Parse a page.

    Raises
    ------
    NotExpositionError
        A line is not in the format, or the page is truncated: its last line does not end.
    """
    if not text.endswith("\n"):
        raise NotExpositionError("the page is truncated, or not in the format" if text else "the page is empty")
    page = Page()
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip(" \t\r")
        if not line:
            continue
        if line.startswith("#"):
            declared = _TYPE.fullmatch(line)
            if declared:
                page.types[declared[1]] = declared[2]
            continue
        sample = _sample(line)
        if sample is None:
            raise NotExpositionError(f"line {number} is not in Prometheus' text format")
        page.samples.append(sample)
    if not page.samples:
        raise NotExpositionError("the page has no metrics")
    return page


def _sample(line: str) -> ExposedSample | None:
    match = _SAMPLE.fullmatch(line)
    if not match or not _NUMBER.fullmatch(match[3]):
        return None
    labels = _labels(match[2][1:-1]) if match[2] else {}
    if labels is None:
        return None
    return ExposedSample(match[1], labels, float(match[3]), int(match[4]) if match[4] else None)


def _labels(text: str) -> dict[str, str] | None:
    labels: dict[str, str] = {}
    at = 0
    while at < len(text) and text[at:].strip(" \t"):
        match = _LABEL.match(text, at)
        if match is None or match[1] in labels:
            return None
        labels[match[1]] = re.sub(r"\\.", lambda escape: _ESCAPES.get(escape[0], escape[0]), match[2])
        at = match.end()
    return labels
