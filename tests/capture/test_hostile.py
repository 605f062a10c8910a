"""Anything at all, handed to every public call: nothing is raised, and rows and gaps are exactly what was attempted."""

import contextlib
import decimal
import math
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded import check_books, gaps, segments

from ranklake import capture
from ranklake.capture.lanes.policies import SELF_METRICS

ANSWERS = ("raise", "recurse", "lie")
ASKED = [
    *(
        "__float__",
        "__index__",
        "__int__",
        "__str__",
        "__repr__",
        "__eq__",
        "__hash__",
        "__bool__",
        "__len__",
        "__iter__",
    ),
    *("__getitem__", "__contains__", "__add__", "__radd__", "__lt__", "__gt__", "__format__", "__call__", "__array__"),
]
LOOKED_AT = (
    "__class__",
    "device",
    "item",
    "dtype",
    "detach",
    "as_integer_ratio",
    "keys",
    "items",
    "is_complex",
    "type",
)
LIES = ["text", -1, math.nan, None, 2**80, b"", [], float, 1.5, True, {}]


def evil(base, answers, lie):
    """Return an object of a class of its own, whose methods and attributes answer as told: see `ANSWERS`."""

    def answer(how):
        def method(self, *_, **__):
            if how == "raise":
                raise RuntimeError("evil")
            return method(self) if how == "recurse" else lie

        return method

    body = {name: answer(how) if name in ASKED else property(answer(how)) for name, how in answers.items()}
    kind = type("Evil", (base,), body)
    return kind("train/x") if base is str else kind(1.5) if base is float else kind()


EVIL = st.builds(
    evil,
    st.sampled_from([object, float, int, str, dict, list]),
    st.dictionaries(st.sampled_from([*ASKED, *LOOKED_AT]), st.sampled_from(ANSWERS), min_size=1, max_size=8),
    st.sampled_from(LIES),
)
NUMBERS = st.one_of(
    st.floats(),
    st.integers(-(2**70), 2**70),
    st.booleans(),
    st.floats(width=32).map(np.float32),
    st.integers(0, 2**64 - 1).map(np.uint64),
    st.just(decimal.Decimal("1.5")),
)
ODD = st.one_of(
    EVIL,
    st.none(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.complex_numbers(),
    st.lists(st.integers(), max_size=3),
    st.sampled_from([np.complex64(1 + 1j), np.datetime64("2026-01-01"), np.timedelta64(1, "s"), np.str_("3.5"), float]),
    st.sampled_from([np.array("3.5"), np.array([1.0, 2.0]), np.array([1.0]), np.void(b"x"), decimal.Decimal("sNaN")]),
)
VALUES = st.one_of(NUMBERS, NUMBERS, ODD)
SINGLE = st.one_of(
    NUMBERS, st.none(), st.text(max_size=5), st.complex_numbers(), st.sampled_from([np.array([1.0]), float])
)
"""What a histogram takes as one value, or as none at all: of an array it takes all."""

STEPS = st.one_of(st.none(), st.integers(0, 9), VALUES)
GOOD_NAMES = st.sampled_from(["a", "b", "eval/loss", "eval/accuracy"])
NAMES = st.one_of(GOOD_NAMES, GOOD_NAMES, st.sampled_from(["", "x\ny", "y" * 10_000, "\ud800"]), ODD)
KEYS = st.one_of(GOOD_NAMES, st.text(max_size=3), st.integers(), st.none(), st.floats(), st.tuples(st.integers()))
MAPPINGS = st.dictionaries(KEYS, VALUES, max_size=20)

CALLS = st.one_of(
    st.tuples(st.just("log"), MAPPINGS, STEPS),
    st.tuples(st.just("keywords"), st.dictionaries(GOOD_NAMES.map(lambda n: n.replace("/", "_")), VALUES), STEPS),
    st.tuples(st.just("scalar"), NAMES, VALUES, STEPS, st.one_of(st.none(), ODD)),
    st.tuples(st.just("counter"), NAMES, VALUES, STEPS, st.one_of(st.none(), ODD)),
    st.tuples(st.just("aggregate"), NAMES, VALUES, STEPS, st.one_of(st.none(), ODD)),
    st.tuples(st.just("histogram"), NAMES, SINGLE, STEPS, st.one_of(st.none(), ODD)),
    st.tuples(st.just("event"), NAMES, VALUES, STEPS, ODD),
    st.tuples(st.just("phase"), NAMES, st.one_of(st.none(), ODD)),
    st.tuples(st.just("step"), STEPS, MAPPINGS),
    st.tuples(st.just("flush")),
)
"""What is called, and what it is given."""


def attempt(run, call, *args):
    """Make a call and return the rows that it attempts, by table."""
    return globals()[f"call_{call}"](run, *args)


def call_log(run, mapping, step):
    run.log(mapping, step=step)
    return {"scalars": len(mapping)}


def call_keywords(run, scalars, step):
    run.log(step=step, **scalars)
    return {"scalars": len(scalars)}


def call_scalar(run, name, value, step, odd):
    run.scalar(name, odd, odd).add(value, step)
    return {"scalars": 1}


def call_counter(run, name, value, step, odd):
    run.counter(name, unit=odd).add(value, step)
    return {"scalars": 1}


def call_aggregate(run, name, value, step, odd):
    run.aggregate(name, unit=odd, kind=odd, every_s=odd).add(value, step)
    return {"scalars": 1}


def call_histogram(run, name, value, step, odd):
    run.histogram(name, unit=odd, every_s=odd, max_buckets=odd).record(value, step)
    return {"distributions": 1}


def call_event(run, name, value, step, odd):
    run.event(name, message=value, step=step, odd=odd, severity=odd, duration_s=value)
    return {"events": 1}


def call_phase(run, name, odd):
    with run.phase(name, size_bytes=odd, microbatch=odd, on_device=odd):
        pass
    return {"spans": 1}


def call_step(run, step, mapping):
    others = {key: value for key, value in mapping.items() if key not in COLUMNS}
    with run.step(step):
        run.log(others)
    return {"steps": 1, "spans": 1, "scalars": len(others)}


def call_flush(run):
    run.flush()
    return {}


COLUMNS = {"loss", "lr", "grad_norm", "tokens", "samples", "train/loss", "train/lr", "train/grad_norm"}
OWN_EVENTS = {"run_start", "rank_start", "run_end", "rank_end", "gap"}


def found_rows(spool):
    """Return the rows that calls made, by table; an interval's and a histogram's values are rows that were folded."""
    found = Counter()
    for segment in segments(spool):
        for row in segment.rows.to_pylist():
            if row.get("event") in OWN_EVENTS or row.get("metric") in SELF_METRICS:
                continue
            if segment.table == "distributions":
                found["distributions"] += row["count"] + row["nan_count"] + row["infinite_count"]
            else:
                found[segment.table] += row.get("agg_count") or 1
    del found["runs"]
    return found


POLICY = st.sampled_from(["flag", "quarantine", "drop"])
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("unregistered", "wrong_kind", "wrong_unit", "out_of_range", "over_max_series"), POLICY),
        "max_series": st.sampled_from([1, 5, 1000]),
        "sampling": st.sampled_from(["*=0.5", "eval/*=0.1, a=0"]),
        "shards": st.just("always"),
        "seal_every_s": st.just(0.05),
    },
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(calls=st.lists(CALLS, max_size=20), late=st.lists(CALLS, max_size=3), chosen=SETTINGS)
def test_nothing_raises_and_the_count_is_exact(calls, late, chosen):
    """Rows stored and gaps counted are what was attempted, by table; what comes after the close is counted, too."""
    attempted, after = Counter(), Counter()
    with tempfile.TemporaryDirectory() as folder:
        spool = Path(folder) / "spool"
        run = capture.start("j", run="r", spool=spool, local_dir=Path(folder) / "local", **chosen)
        with contextlib.closing(run):
            for call in calls:
                attempted.update(attempt(run, *call))
        assert found_rows(spool) + counted(run) == +attempted
        assert gaps(spool) == run.gaps()
        check_books(spool)
        for call in late:
            after.update(attempt(run, *call))
        assert found_rows(spool) + counted(run) == attempted + after
        run.recording.at_exit()


def counted(run):
    """Return the gaps of a run by table."""
    return Counter({table: sum(reasons.values()) for table, reasons in run.gaps().items()})


BLOCKS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["enter", "leave"]), st.sampled_from(["forward", "other"])),
        st.tuples(st.sampled_from(["begin", "enter", "leave", "log"]), st.integers(0, 3)),
    ),
    max_size=40,
)
"""Phases and steps, by name and number, entered and left in any order, again and never."""


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(does=BLOCKS)
def test_each_end_of_a_block_is_a_row_or_a_gap(does):
    """Blocks that overlap, are left twice or were never entered raise nothing; every end is accounted for."""
    attempted = Counter()
    with tempfile.TemporaryDirectory() as folder:
        spool = Path(folder) / "spool"
        with capture.start("j", run="r", spool=spool, local_dir=Path(folder) / "local") as run:
            blocks = {name: run.phase(name) for name in ("forward", "other")}
            blocks |= {number: run.step(number) for number in range(4)}
            for what, which in does:
                if what == "begin":
                    blocks[which] = run.step(which)
                elif what == "log":
                    run.log(a=1.0, b=2.0)
                    attempted["scalars"] += 2
                elif what == "enter":
                    blocks[which].__enter__()
                else:
                    blocks[which].__exit__(None, None, None)
                    attempted.update(["spans"] if isinstance(which, str) else ["spans", "steps"])
        assert found_rows(spool) + counted(run) == attempted
        check_books(spool)
