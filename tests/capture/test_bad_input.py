"""Bad input: training goes on, the count is exact, the reason is recorded. Nothing here may raise."""

import collections
import decimal
import enum
import fractions
import json
import math
import pickle
import subprocess
import sys
import time
import types

import numpy as np
import pytest
from recorded import check_books, gaps, rows, segments

from ranklake import capture
from ranklake.capture.common.gaps import (
    AFTER_CLOSE,
    BAD_NAME,
    BAD_STEP,
    BAD_VALUE,
    NOT_STARTED,
    TOO_LARGE,
    TOO_MANY_SERIES,
)
from ranklake.capture.common.values import BadValueError, DeviceValueError, integer, number


class Hostile:
    """An object whose every method raises."""

    def __getattr__(self, name):
        raise RuntimeError(name)

    def __repr__(self):
        raise RuntimeError("repr")

    __str__ = __float__ = __index__ = __eq__ = __hash__ = __bool__ = __iter__ = __len__ = __repr__


GOOD = [
    (1, 1.0),
    (2.5, 2.5),
    (bool(1), 1.0),
    (np.float16(0.5), 0.5),
    (np.float32(0.1), float(np.float32(0.1))),
    (np.float64(0.1), 0.1),
    (np.longdouble(0.5), 0.5),
    (np.int8(-3), -3.0),
    (np.uint64(2**64 - 1), float(2**64 - 1)),
    (np.bool_(1), 1.0),
    (np.array(4.0), 4.0),
    (np.array([[5]]), 5.0),
    (decimal.Decimal("1.25"), 1.25),
    (fractions.Fraction(1, 4), 0.25),
    (2**70, 2.0**70),
]
BAD = [
    "3.5",
    b"3",
    None,
    1j,
    np.complex64(1),
    np.array([1.0, 2.0]),
    [1.0],
    {},
    object(),
    10**400,
    np.datetime64("2026-01-01"),
    np.str_("x"),
    math,
    float,
    Hostile(),
]
REAL = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]
REAL += ["longdouble"]
NOT_REAL = {
    "complex64": np.complex64(1),
    "complex128": np.complex128(1),
    "clongdouble": np.clongdouble(1),
    "datetime64": np.datetime64(1, "s"),
    "timedelta64": np.timedelta64(1, "s"),
    "str": np.str_("1"),
    "bytes": np.bytes_(b"1"),
    "void": np.void(b"1"),
    "array of complex": np.array(1 + 0j),
    "array of text": np.array("1"),
    "array of objects": np.array(None),
}


def in_every_way(run, value, step=1):
    """Record a value in each way there is, each time as a second value, when the fast ways are known."""
    one, counter, folded, many = (
        getattr(run, kind)("way/x") for kind in ("scalar", "counter", "aggregate", "histogram")
    )
    for given in (1.0, value):
        run.log({"way/alone": given}, step=step)
        run.log({"way/a": given, "way/b": 1.0}, step=step)
        run.log(way_a=given, way_b=1.0, step=step)
        one.add(given, step)
        counter.add(given, step)
        folded.add(given, step)
        many.record(given, step)


@pytest.mark.parametrize("dtype", REAL)
def test_scalars_of_every_real_dtype_are_recorded_in_every_way(place, dtype):
    """A one of numpy's is a one, whether the names were seen before or not."""
    with place.start() as run:
        in_every_way(run, getattr(np, "bool_" if dtype == "bool" else dtype)(1))
    found = rows(place.spool, "scalars")
    assert sorted(row["value"] for row in found) == [1.0] * 14 + [2.0]  # the counter's sum
    assert sum(row["agg_count"] or 0 for row in found) == 2
    assert [row["count"] for row in rows(place.spool, "distributions")] == [2]
    assert run.gaps() == {}


@pytest.mark.parametrize("dtype", NOT_REAL)
@pytest.mark.filterwarnings("ignore")  # numpy warns of what it would do to a complex number
def test_scalars_of_other_dtypes_are_counted_in_every_way(place, dtype):
    """Neither a real part nor a count of seconds is made of them, even where the same names had numbers before."""
    with place.start() as run:
        in_every_way(run, NOT_REAL[dtype])
    found = rows(place.spool, "scalars")
    assert sorted(row["value"] for row in found) == [1.0] * 10
    assert run.gaps() == gaps(place.spool) == {"scalars": {BAD_VALUE: 6}, "distributions": {BAD_VALUE: 1}}
    check_books(place.spool)


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, collections.Counter, types.MappingProxyType, None])
def test_mappings_of_every_kind(place, kind):
    """A mapping that answers for names it does not have is not asked for those of the call before, nor changed."""
    given = {"x": 1.0, "y": 2.0}
    given = collections.defaultdict(float, given) if kind is None else kind(given)
    with place.start() as run:
        for _ in range(2):
            run.log({"a": 1.0, "b": 1.0})
        run.log(given)
    assert [row["metric"] for row in rows(place.spool, "scalars")] == ["a", "b", "a", "b", "x", "y"]
    assert set(given) == {"x", "y"}


class Name(str):
    """A name that is not what it was by the time it is looked up."""

    __slots__ = ()

    def __hash__(self):
        return 1

    def __eq__(self, other):
        raise RuntimeError(other)

    __str__ = __repr__ = __eq__


def test_names_are_what_they_hold(place):
    """Texts of other classes, enumerations say, are their text, and their own code is not asked; twice is a gap."""
    names = enum.StrEnum("names", {"one": "train/epoch", "two": "loss"})
    with place.start() as run:
        with run.step(0):
            run.log({names.one: 1.0, names.two: 0.5, np.str_("numpy"): 2.0})
        run.log({Name("mine"): 3.0})
        run.log({"mine": 4.0, Name("mine"): 5.0})
        run.scalar(Name("mine"), Name("gauge"), Name("{cat}")).add(6.0)
        with run.phase(Name("forward")):
            pass
        run.event(Name("happened"), message=Name("message"))
    found = [(row["metric"], row["value"]) for row in rows(place.spool, "scalars")]
    assert found == [("train/epoch", 1.0), ("numpy", 2.0), ("mine", 3.0), ("mine", 4.0), ("mine", 6.0)]
    assert rows(place.spool, "steps")[0]["loss"] == 0.5
    assert "forward" in {row["name"] for row in rows(place.spool, "spans")}
    assert run.gaps() == {"scalars": {BAD_NAME: 1}}


@pytest.mark.parametrize("given", [2**63, -(2**63), 2**70, 10**400, 1e300])
def test_counts_of_a_step_beyond_64_bits(place, given):
    """The step has its row; the count that does not fit is one gap."""
    with place.start() as run, run.step(0, tokens=given, samples=3):
        pass
    (step,) = rows(place.spool, "steps")
    assert (step["tokens"], step["samples"]) == (None, 3)
    assert run.gaps() == {"scalars": {BAD_VALUE: 1}}


BAD_STEPS = ["one", 1.5, math.nan, math.inf, 2**63, -(2**63), [1], Hostile(), 1j]
KINDS = [f"{type(value).__name__}-{index}" for index, value in enumerate(BAD)]


@pytest.mark.parametrize(("given", "meant"), GOOD, ids=[f"{type(v).__name__}-{i}" for i, (v, _) in enumerate(GOOD)])
def test_numbers_of_every_kind_are_recorded(place, given, meant):
    """Scalars of Python, numpy, decimal and fractions come back as doubles, by every way of logging."""
    with place.start() as run:
        run.log(one=given)
        run.log({"two": given, "three": given})
        run.scalar("four").add(given, 1)
    found = rows(place.spool, "scalars")
    assert [row["value"] for row in found] == [meant] * 4
    assert run.gaps() == {}


@pytest.mark.parametrize("given", BAD, ids=KINDS)
def test_what_is_no_number_is_counted_once_each(place, given):
    """Each value that is no number is one gap; the good values beside it are recorded."""
    with place.start() as run:
        run.log(one=given)
        run.log({"two": given, "good": 1.0})
        run.scalar("three").add(given, 1)
        with run.step(0, tokens=given):
            run.log(loss=given, lr=0.5)
    missing = 4 if given is None else 5  # tokens=None is as good as not given
    assert run.gaps() == {"scalars": {BAD_VALUE: missing}}
    assert gaps(place.spool) == {"scalars": {BAD_VALUE: missing}}
    assert [row["metric"] for row in rows(place.spool, "scalars")] == ["good"]
    (step,) = rows(place.spool, "steps")
    assert (step["loss"], step["lr"], step["tokens"]) == (None, 0.5, None)
    check_books(place.spool)


@pytest.mark.parametrize("given", BAD_STEPS, ids=range(len(BAD_STEPS)))
def test_a_step_without_a_good_number_is_a_gap(place, given):
    """The step has no row and is counted; what was logged in it is kept without a step."""
    with place.start() as run, run.step(given, tokens=3):
        run.log(loss=1.0, other=2.0)
    assert run.gaps() == {"steps": {BAD_STEP: 1}}
    assert rows(place.spool, "steps") == []
    found = {row["metric"]: (row["value"], row["step"]) for row in rows(place.spool, "scalars")}
    assert found == {"train/loss": (1.0, None), "train/tokens": (3.0, None), "other": (2.0, None)}


def test_step_numbers_of_any_integral_type_are_taken(place):
    """Whole floats, numpy integers and booleans count as step numbers, negative ones too: contracts judge them."""
    given = [np.int64(5), 6.0, np.float32(7), True, -3, 2**62]
    with place.start() as run:
        for step in given:
            with run.step(step):
                run.log(x=1.0)
            run.log({"y": 1.0}, step=step)
            run.scalar("z").add(1.0, step)
    assert [row["step"] for row in rows(place.spool, "steps")] == [5, 6, 7, 1, -3, 2**62]
    assert sorted({row["step"] for row in rows(place.spool, "scalars")}) == [-3, 1, 5, 6, 7, 2**62]
    assert run.gaps() == {}


def test_a_step_going_backwards_is_recorded_as_it_comes(place):
    """A restart from a checkpoint repeats steps; each is a row."""
    with place.start() as run:
        for step in (3, 4, 3, 4):
            with run.step(step):
                pass
    assert [row["step"] for row in rows(place.spool, "steps")] == [3, 4, 3, 4]


def test_bad_steps_of_values_are_counted_per_value(place):
    """Values logged for a step that is no number are lost, one by one."""
    with place.start() as run:
        run.log({"a": 1.0, "b": 2.0}, step="three")
        run.scalar("c").add(1.0, "four")
    assert run.gaps() == {"scalars": {BAD_STEP: 3}}


@pytest.mark.parametrize("name", ["", "line\nbreak", "tab\t", "nul\0", "\ud800", 5, None, (1, 2), b"bytes"])
def test_names_that_cannot_be_stored_are_refused(place, name):
    """A metric, span or event without a printable name is a gap of its table; its neighbours are recorded."""
    with place.start() as run:
        run.log({name: 1.0, "good/name with spaces": 2.0})
        run.scalar(name).add(1.0)
        with run.phase(name):
            pass
        run.event(name)
    assert run.gaps() == {"events": {BAD_NAME: 1}, "scalars": {BAD_NAME: 2}, "spans": {BAD_NAME: 1}}
    assert [row["metric"] for row in rows(place.spool, "scalars")] == ["good/name with spaces"]


def test_names_of_any_length_and_script(place):
    """Slashes and any printable text are fine; ten kilobytes are not."""
    with place.start() as run:
        run.log({"a/b/c": 1.0, "perdita λ": 2.0, "損失": 3.0, "x" * 10_000: 4.0})
    assert [row["metric"] for row in rows(place.spool, "scalars")] == ["a/b/c", "perdita λ", "損失"]
    assert run.gaps() == {"scalars": {TOO_LARGE: 1}}


@pytest.mark.slow
def test_a_mapping_of_ten_thousand_keys(place):
    """It is recorded as far as the number of series allows, and the rest is counted."""
    with place.start() as run:
        run.log({f"key/{number}": float(number) for number in range(10_000)})
        run.log({"one more": 1.0, "key/5": 2.0})
    assert len(rows(place.spool, "scalars")) == 10_001
    assert run.gaps() == {"scalars": {TOO_MANY_SERIES: 1}}
    check_books(place.spool)


@pytest.mark.slow
def test_a_wide_mapping_blocks_no_longer_than_its_keys_do(place):
    """Ten thousand new keys at once take about as long as a thousand mappings of ten, and less the next time."""
    wide = {f"wide/{n}": 1.0 for n in range(10_000)}
    narrow = [{f"narrow/{n}/{k}": 1.0 for k in range(10)} for n in range(1000)]
    with place.start(max_series=20_000) as run:

        def taken(mappings):
            begun = time.thread_time()
            for mapping in mappings:
                run.log(mapping)
            return time.thread_time() - begun

        first, of_narrow, second = taken([wide]), taken(narrow), taken([wide])
    assert first < 5 * of_narrow
    assert second < first
    assert sum(segment.rows.num_rows for segment in segments(place.spool, "scalars")) == 30_000
    assert run.gaps() == {}


def test_mappings_of_ever_other_keys(place):
    """More kinds of mappings than there are schemas fall back to value by value: none is lost."""
    with place.start() as run:
        for number in range(1200):
            run.log({f"k/{number % 80}": 1.0, f"l/{number}": 2.0})
    assert len(rows(place.spool, "scalars")) == 2400
    assert run.gaps() == {}


@pytest.mark.slow
def test_wrong_arguments_do_not_raise(place):
    """Too many arguments, of wrong types, where none belong."""
    with place.start() as run:
        run.log(5)
        run.log([("a", 1)])
        run.log({"a": 1.0}, "excess", 3)
        run.event()
        run.event("e", "excess", severity=7, duration_s="long", step=[])
        run.event("f", duration_s=-5, message=Hostile(), thing=Hostile(), text="\ud800")
        with run.step(1, "excess", 2, loss=1.0, unknown=3.0) as step, run.phase("forward", "excess", 3):
            assert step is not None
        with run.phase("x", size_bytes="many"):
            pass
        with run.phase("x", microbatch=1 << 40):
            pass
        run.flush("soon")
        run.calibrate_peak()
    (row,) = rows(place.spool, "steps")
    assert row["loss"] == 1.0
    assert {found["event"] for found in rows(place.spool, "events")} >= {"f"}
    check_books(place.spool)


@pytest.mark.parametrize(
    "settings",
    [
        {"job": 5},
        {"job": Hostile()},
        {"run": 7},
        {"run": "a/b\nc" * 100},
        {"rank": -1},
        {"rank": 5, "world_size": 2},
        {"rank": "one"},
        {"attempt": 2**40},
        {"config": Hostile()},
        {"config": {"a": Hostile(), 5: math.nan, "deep": [[[[[[[[[[1]]]]]]]]]]}},
        {"labels": 5},
        {"seal_every_s": "often"},
        {"storage_options": 5},
        {"spool": "nosuch://bucket/x"},
        {"spool": 5},
        {"local_dir": "/proc/no/such"},
        {"param_count": "many"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_starting_badly_does_not_raise(tmp_path, settings):
    """Whatever `start` is given, a run comes back that takes every call."""
    run = capture.start(**({"job": "j", "spool": tmp_path / "spool", "local_dir": tmp_path / "local"} | settings))
    with run.step(0), run.phase("forward"):
        run.log(loss=1.0)
    run.close(timeout_s=0.5)
    if run.recording is not None:  # of a run that could not begin there is nothing to close at exit
        run.recording.at_exit()


def test_use_after_close_is_counted(place):
    """Everything that comes after the close is refused and counted, each once."""
    run = place.start()
    handle, forward = run.scalar("x"), run.phase("forward")
    counter, folded, many = run.counter("x"), run.aggregate("x"), run.histogram("x")
    run.log(y=1.0, z=2.0)
    folded.add(1.0)
    run.close()
    run.log(y=1.0, z=2.0)
    run.log(new=1.0)
    run.log(y="text", z=1.0, step="none")
    handle.add(1.0)
    handle.add("text")
    counter.add()
    folded.add(1.0)
    run.aggregate("new").add(1.0)
    many.record([1.0, 2.0])
    with forward:
        pass
    run.event("late")
    with run.step(9), run.phase("forward"):
        pass
    assert run.gaps() == {
        "distributions": {AFTER_CLOSE: 1},
        "events": {AFTER_CLOSE: 1},
        "scalars": {AFTER_CLOSE: 10},
        "spans": {AFTER_CLOSE: 3},
        "steps": {AFTER_CLOSE: 1},
    }
    assert not run.flush()
    assert rows(place.spool, "steps") == []


def use(run):
    """Make each call once, two values in one of them."""
    run.log({"a": 1.0}, b=2.0)
    run.scalar("c").add(3.0)
    run.counter("d").add()
    run.aggregate("e").add(4.0)
    run.histogram("f").record([5.0])
    run.event("g")
    forward = run.phase("forward")
    with run.step(0), forward, forward:
        pass
    run.flush()
    run.close()


USED = {"scalars": 5, "distributions": 1, "events": 1, "spans": 3, "steps": 1}
"""What `use` attempts."""


def test_a_run_that_could_not_begin_counts_what_it_is_given(tmp_path, warnings_told):
    """Where not even a place can be named, each row is counted, and a warning says why nothing is recorded."""
    run = capture.start("job", local_dir="relative\0", spool=tmp_path)
    use(run)
    assert run.gaps() == {table: {NOT_STARTED: count} for table, count in USED.items()}
    assert "nothing is recorded" in warnings_told.text


def test_a_run_used_where_it_was_not_started_counts_what_it_is_given(place):
    """In a spawned worker the run comes by pickle: nothing is stored from there, and it is told, and counted."""
    with place.start() as run:
        handles = run.scalar("c"), run.counter("d"), run.aggregate("e"), run.histogram("f")
        pickled = pickle.dumps(pickle.loads(pickle.dumps((run, *handles))))
        worker = (
            "import json, pickle, sys\n"
            "run, c, d, e, f = pickle.load(sys.stdin.buffer)\n"
            "run.log({'a': 1.0}, b=2.0); c.add(3.0); d.add(); e.add(4.0); f.record([5.0]); run.event('g')\n"
            "forward = run.phase('forward')\n"
            "with run.step(0), forward, forward: pass\n"
            "run.close(); print(json.dumps(run.gaps()))"
        )
        done = subprocess.run(
            [sys.executable, "-c", worker], input=pickled, capture_output=True, check=True, timeout=60
        )
    assert json.loads(done.stdout) == {table: {NOT_STARTED: count} for table, count in USED.items()}
    assert done.stderr.decode().count(NOT_STARTED) == 1
    assert run.gaps() == {}
    assert rows(place.spool, "scalars") == []


def test_a_run_that_is_switched_off_counts_nothing(warnings_told):
    """Who says enabled=False wants no rows and no warnings, not after a pickle either."""
    run = capture.start(enabled=False)
    for one in (run, pickle.loads(pickle.dumps(run))):
        use(one)
        pickle.loads(pickle.dumps(one.scalar("x"))).add(1.0)
        pickle.loads(pickle.dumps(one.counter("x"))).add(1)
        assert one.gaps() == {}
    assert warnings_told.text == ""


def test_two_runs_of_one_name_at_once(place):
    """They are two streams: both are complete, close in any order, and the books of each add up."""
    with place.start() as first:
        second = place.start(spool=place.spool)
        for number in range(300):
            for run, value in ((first, 1.0), (second, 2.0)):
                with run.step(number), run.phase("forward"):
                    run.log({"x": value, "y": value})
                    run.scalar("z").add(value, number)
    second.close()
    found = rows(place.spool, "scalars")
    values = collections.defaultdict(collections.Counter)
    for row in found:
        values[row["incarnation"]][row["value"]] += 1
    assert sorted(map(dict, values.values()), key=str) == [{1.0: 900}, {2.0: 900}]
    assert collections.Counter(row["step"] for row in rows(place.spool, "steps")) == dict.fromkeys(range(300), 2)
    assert first.gaps() == second.gaps() == {}
    check_books(place.spool)


def test_one_warning_per_reason(place, caplog):
    """A thousand bad values are told once, in one line."""
    with place.start() as run:
        for _ in range(1000):
            run.log(x="text")
    assert run.gaps() == {"scalars": {BAD_VALUE: 1000}}
    assert caplog.text.count(BAD_VALUE) == 1


def test_gaps_are_seen_in_the_events(place):
    """Whoever asks the lake sees what was lost, and why."""
    with place.start() as run:
        for _ in range(3):
            run.log(x="text")
    (told,) = [row for row in rows(place.spool, "events") if row["event"] == "gap"]
    assert told["attributes"] == '{"reason":"bad value","rows":3,"table":"scalars"}'


def test_warnings_are_told_without_credentials(place, caplog):
    """A value that is none may be a secret; so may the text of an error of somebody else's."""
    run = place.start(log_rate_per_s="token=hunter2")
    run.log({"loss": "password=hunter2"})
    run.rows.sink.trouble("looking", ValueError("https://me:hunter2@host/x"), "scalars")
    run.close()
    assert caplog.text.count("[redacted]") >= 2
    assert "hunter2" not in caplog.text


def test_number_and_integer_raise_only_what_they_say():
    """The conversions raise their own errors for anything that is no number."""
    for given in BAD:
        with pytest.raises((BadValueError, DeviceValueError)):
            number(given)
    for given in [*BAD, 0.5, math.inf, 2**63]:
        with pytest.raises((BadValueError, DeviceValueError)):
            integer(given)
    assert integer(np.int64(2**53 + 1)) == 2**53 + 1
