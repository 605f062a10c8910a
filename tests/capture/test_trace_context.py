"""Trace context: a run tells the W3C trace that it was started in on its spans, its log lines and its label."""

import json
import logging

from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ranklake.capture.provenance.launcher import find_traceparent
from tests.support.recorded import rows

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


def record(place, **options):
    """Return the spans' and lines' trace ids, and the labels, of a run with a step and two lines."""
    run = place.start(stderr="off", **options)
    logger = logging.getLogger("test.trace_context")
    logger.addHandler(handler := run.log_handler())
    with run.step(1), run.phase("forward"):
        logger.warning("in a step")
        logger.error("at once")
    run.coordinates(dp=1)
    with run.step(2):
        pass
    logger.removeHandler(handler)
    run.close()
    spans, lines = rows(place.spool, "spans"), rows(place.spool, "logs")
    assert len(spans) >= 3
    assert len(lines) == 2
    labels = rows(place.spool, "runs")[-1]["labels"]
    return {row["trace_id"] for row in spans}, {row["trace_id"] for row in lines}, json.loads(labels or "null")


def test_of_the_environment(place, monkeypatch):
    """All spans and lines have the trace's id; the label has the span that started the run, beside the user's own."""
    monkeypatch.setenv("TRACEPARENT", PARENT)
    assert record(place, labels={"team": "a"}) == ({TRACE}, {TRACE}, {"team": "a", "traceparent": PARENT})


def test_of_an_open_span(place, monkeypatch):
    """A span that is open in the process is nearer than its environment."""
    monkeypatch.setenv("TRACEPARENT", PARENT)
    around = NonRecordingSpan(SpanContext(0xABC, 0xD, is_remote=False, trace_flags=TraceFlags(1)))
    with use_span(around):
        spans, lines, labels = record(place)
    assert spans == lines == {f"{0xABC:032x}"}
    assert labels == {"traceparent": f"00-{0xABC:032x}-{0xD:016x}-01"}


def test_of_none(place, monkeypatch):
    """Unknown stays NULL, and so it does where the variable says nothing."""
    monkeypatch.setenv("TRACEPARENT", "00-" + "0" * 32 + "-00f067aa0ba902b7-01")
    assert record(place) == ({None}, {None}, None)


@given(
    st.one_of(
        st.text(max_size=80),
        st.from_regex(r"\A[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-x)?\Z"),
        st.builds("{}-{:032x}-{:016x}-{:02x}".format, st.sampled_from(["00", "01", "ff"]), *[st.integers(0, 3)] * 3),
    )
)
@example(f"00-{1:032x}-{1:016x}-00-")
def test_agrees_with_opentelemetry(text):
    """What the official propagator takes from a header is taken, and nothing else."""
    context = TraceContextTextMapPropagator().extract({"traceparent": text})
    expected = trace.get_current_span(context).get_span_context()
    parent = find_traceparent({"TRACEPARENT": text})
    assert bool(parent) == expected.is_valid
    if parent:
        assert parent[3:52] == f"{expected.trace_id:032x}-{expected.span_id:016x}"
