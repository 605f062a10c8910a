"""Parts of a start in `goodput_daily`: disjoint, never more than the whole, each attempt with its own."""

import itertools
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollup_inputs import DAY, NOON, computed, context

from ranklake.lake.rollups.declaration import replace_table

SECOND = 10**9


def at(seconds):
    return NOON + timedelta(seconds=seconds)


def span(part, begin, seconds, *, sampled=False, **facts):
    """Return a row of `spans` that names a part of a start."""
    row = {"name": f"init/{part}", "kind": "other", "ts": at(begin), "duration_ns": round(seconds * SECOND)}
    return {**row, "span_id": 1, "stream": "sampled" if sampled else None, **facts}


def steps(starts, seconds=1.0, *, attempt=0, first=0):
    return [
        {"step": first + n, "ts": at(start), "step_time_s": seconds, "attempt": attempt}
        for n, start in enumerate(starts)
    ]


def event(name, seconds, attempt=0, took=None):
    duration = None if took is None else round(took * SECOND)
    return {"event": name, "ts": at(seconds), "attempt": attempt, "duration_ns": duration}


def starts_of(**tables):
    """Return {attempt: {part: ns}} and the rows of `goodput`; the parts of each attempt add up to its start."""
    ctx = context(**tables)
    replace_table(ctx, "step_rollup", computed(ctx, "step_rollup", [DAY]))
    daily = computed(ctx, "goodput_daily")
    replace_table(ctx, "goodput_daily", daily)
    rows = computed(ctx, "goodput").sort_by("attempt").to_pylist()
    starts = {row["attempt"]: {} for row in rows}
    for row in daily.to_pylist():
        start_ns = row["init_ns"] + row["restart_ns"]
        assert (row["start_part"] is None) == (start_ns == 0)
        if row["start_part"] is not None:
            assert start_ns == row["wall_ns"] > 0
            parts = starts[row["attempt"]]
            parts[row["start_part"]] = parts.get(row["start_part"], 0) + start_ns
    for row in rows:
        assert sum(starts[row["attempt"]].values()) == row["init_ns"] + row["restart_ns"]
    return starts, rows


def seconds_of(parts):
    return {part: ns / SECOND for part, ns in parts.items()}


def test_a_start_is_broken_down():
    """The attempt begins with its process; a named part goes before a sampled one, and what nobody names is told."""
    starts, (row,) = starts_of(
        steps=steps([10, 11, 12]),
        events=[event("run_start", 2), event("run_end", 13)],
        spans=[
            span("before_capture", -4, 5),
            span("capture", 1, 1),
            span("script", 2, 3, sampled=True),
            span("tokenizer", 3, 1),
            span("vocabulary", 3.25, 0.5),
            span("model", 5, 2, sampled=True),
            span("data", 2, 9, rank=1),
        ],
    )
    assert seconds_of(starts[0]) == {
        "before_capture": 5, "capture": 1, "script": 2, "tokenizer": 0.5, "vocabulary": 0.5, "model": 2,
        "unexplained": 3,
    }  # fmt: skip
    assert (row["ts"], row["wall_ns"]) == (at(-4), 17 * SECOND)


def test_the_excess_of_the_first_step_has_parts_too():
    """Compilation in the first step is part of the start up to what the step took beyond a usual one."""
    starts, (row,) = starts_of(
        steps=[*steps([0], 100.0), *steps(range(100, 120), first=1)],
        spans=[span("compile", 0, 60, sampled=True), span("compile", 98, 4, sampled=True)],
    )
    assert seconds_of(starts[0]) == {"compile": 61, "first_step": 38}
    assert row["productive_ns"] == 21 * SECOND


def test_a_checkpoint_in_a_start_is_no_part_of_it():
    """What the account calls a checkpoint stays one, whatever was sampled meanwhile."""
    starts, (row,) = starts_of(
        steps=steps([10, 11]),
        events=[event("run_start", 0), event("checkpoint", 6, took=2)],
        spans=[span("model", 0, 8, sampled=True)],
    )
    assert seconds_of(starts[0]) == {"model": 6, "unexplained": 2}
    assert row["checkpoint_ns"] == 2 * SECOND


def test_a_restart_has_its_own_parts():
    """Downtime ends where the process of the next attempt starts, which is before it records anything."""
    starts, (_, second) = starts_of(
        steps=[*steps(range(10)), *steps(range(30, 35), attempt=1, first=10)],
        events=[event("run_start", 0), event("run_start", 25, attempt=1)],
        spans=[span("before_capture", 20, 5, attempt=1), span("imports", 26, 2, attempt=1, sampled=True)],
    )
    assert starts[0] == {}
    assert seconds_of(starts[1]) == {"downtime": 10, "before_capture": 5, "imports": 2, "unexplained": 3}
    assert second["downtime_ns"] == 10 * SECOND


def test_a_start_that_never_ends_has_parts():
    """A run that was killed while it started says what it was at."""
    starts, _ = starts_of(events=[event("run_start", 0), event("failure", 9)], spans=[span("download", 1, 8)])
    assert seconds_of(starts[0]) == {"download": 8, "unexplained": 1}


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_spans_give_disjoint_parts_of_the_whole(data):
    """Random spans, measured and sampled, before and in the first step, of two attempts: as an oracle says."""
    tick, facts, spans, events = st.integers(-4_000, 24_000), [], [], []
    for attempt in range(data.draw(st.integers(1, 2))):
        shift = 40 * attempt
        facts += steps([shift + 12, *range(shift + 20, shift + 26)], attempt=attempt, first=6 * attempt)
        facts[-7]["step_time_s"] = data.draw(st.sampled_from([1.0, 8.0]))  # the longer one is beyond ten usual ones
        for row in facts[-6:]:
            row["step_time_s"] = 0.5
        events.append(event("run_start", shift + 2, attempt))
        for number in range(data.draw(st.integers(0, 6))):
            begin, end = sorted((shift + data.draw(tick) / 1000, shift + data.draw(tick) / 1000))
            sampled = data.draw(st.booleans())
            part = data.draw(st.sampled_from(["model", "data", "compile"]))
            spans.append(span(part, begin, end - begin, sampled=sampled, span_id=number, attempt=attempt))
    starts, rows = starts_of(steps=facts, events=events, spans=spans)
    for row in rows:
        attempt, shift = row["attempt"], 40 * row["attempt"]
        mine = [each for each in spans if each["attempt"] == attempt]
        own_begin = min([at(shift + 2), *(each["ts"] for each in mine)])
        first = next(each for each in facts if each["attempt"] == attempt)
        beyond = first["step_time_s"] - 0.5 if first["step_time_s"] > 5 else 0
        end = first["ts"] + timedelta(seconds=beyond)
        edges = {row["ts"], own_begin, first["ts"], end}
        edges |= {edge for each in mine for edge in (each["ts"], until(each))}
        expected = {}
        for low, high in itertools.pairwise(sorted(edge for edge in edges if row["ts"] <= edge <= end)):
            over = [each for each in mine if each["ts"] <= low and until(each) >= high]
            over.sort(key=lambda each: (each["stream"] is not None, -each["ts"].timestamp(), until(each), each["name"]))
            part = over[0]["name"][5:] if over else "first_step" if low >= first["ts"] else "unexplained"
            part = "downtime" if low < own_begin else part
            expected[part] = expected.get(part, 0) + round((high - low) / timedelta(microseconds=1)) * 1000
        assert starts[attempt] == {part: ns for part, ns in expected.items() if ns}


def until(row):
    return row["ts"] + timedelta(microseconds=row["duration_ns"] // 1000)
