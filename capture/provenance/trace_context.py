"""Trace context: the W3C trace that a run belongs to, as what started it says (https://www.w3.org/TR/trace-context/).

    a span of OpenTelemetry that is open where the run starts     a trainer within a traced service
    TRACEPARENT in the environment                                a job of a traced workflow (Argo, otel-cli, CI)

It becomes ``trace_id`` of the run's spans and log lines and the run's label ``traceparent``.
"""

import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

_FORM: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
"""Later versions may append fields; all zeros are no ids, and there is no version ff."""


def find_traceparent(environ: Mapping[str, str]) -> str:
    """Return the run's place in a trace, as version 00 writes it; empty if it is in none. Nothing is raised."""
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is not None:
        with suppress(Exception):  # another release may raise anything
            around = api.get_current_span().get_span_context()
            if around.is_valid:
                return f"00-{around.trace_id:032x}-{around.span_id:016x}-{int(around.trace_flags):02x}"
    parts = _FORM.fullmatch(environ.get("TRACEPARENT", "").strip())
    return "" if parts is None else "-".join(("00", *parts.groups()))


def trace_id_of(traceparent: str) -> str | None:
    """Return the trace's id; None without one."""
    return traceparent[3:35] or None


def add_label(labels: object, traceparent: str) -> object:
    """Return a run's labels with its place in a trace; a label of the user's own of that name stays."""
    if not traceparent or not isinstance(labels, Mapping | None):
        return labels
    return {"traceparent": traceparent} | dict(labels or {})
