"""What the screen clears, and what hashes of keys say, against Great Expectations and against the keys themselves."""

import math
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from checked import DAY, RANGES, ROWS, expectations, made, table
from governed import Site
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from segments import step_rows

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.checks.registry import failures, judged_rows
from ranklake.lake.contracts.load import contract, load_metrics
from ranklake.lake.tables.commit import replace_partitions
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.tables import delta_table
from ranklake.quality import keys as keys_module
from ranklake.quality import scan as scanning
from ranklake.quality.engine import frame
from ranklake.quality.forms import FORMS, Screen, clear
from ranklake.quality.keys import Hashes
from ranklake.quality.scan import scan
from ranklake.quality.suite import compile_suite
from ranklake.quality.tally import Partition

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SOUND = {
    "whole": None,
    "small": 1,
    "real": 0.5,
    "narrow": 0.0,
    "text": "ab",
    "flag": True,
    "moment": NOON,
    "day": DAY,
    "metric": "a",
}


def coded(rows, spare=("zz",)):
    """Return rows with text dictionary-typed, as the scan reads them; no row has the spare words."""
    for index, (name, kind) in enumerate(zip(rows.column_names, rows.schema.types, strict=True)):
        if kind == pa.string():
            words = pa.chunked_array([pa.array([*rows[name].to_pylist(), *spare], kind).dictionary_encode()])
            rows = rows.set_column(index, name, words.slice(0, rows.num_rows))
    return rows


@settings(max_examples=150, deadline=None)
@given(rows=ROWS, odd=st.none() | st.sampled_from([math.nan, math.inf, -math.inf]))
@pytest.mark.slow
def test_what_is_cleared_has_no_failing_row(rows, odd):
    """Where the screen clears, the mask of each row finds no failure and as many rows judged."""
    if odd is not None:
        rows[0]["real"] = rows[-1]["narrow"] = odd
    data = table(rows)
    screen = Screen(coded(data), RANGES)
    for one in expectations(made()):
        found = clear(screen, one.check)
        if found is not None and not all(data[name].null_count == len(data) for name in one.check.columns):
            assert not pc.any(failures(one.check, data, RANGES)).as_py(), one.check
            assert found == judged_rows(one.check, data, RANGES), one.check


def test_sound_rows_are_cleared():
    """Every kind of check is cleared of sound rows: else they would cost what they cost Great Expectations."""
    chosen, cleared = expectations(made()), set()
    for sound in ({"whole": 3, "text": None}, {"text": "ab"}, {"text": "12"}, {"text": "a", "metric": "a"}):
        rows = coded(table([SOUND | sound, SOUND | sound | {"small": 2}]), spare=())
        cleared |= {one.check.id for one in chosen if clear(Screen(rows, RANGES), one.check) == 2}
    assert cleared == {one.check.id for one in chosen}


def test_nan_is_left_to_great_expectations(judge):
    """It does not count NaN as judged, so neither a range nor an order is cleared where there is one."""
    some = [one for one in expectations(made()) if one.check.id in {"c3", "d4"}]
    data = table([SOUND | {"real": math.nan}, SOUND])
    assert [clear(Screen(coded(data), RANGES), one.check) for one in some] == [None, None]
    found = judge(made(), frame(data, some, RANGES), some, classified=False)
    assert [(one.checked, one.failed) for one in found] == [(1, 0), (1, 0)]


POOLS = {
    "run": ["r1"] * 9 + ["no name"],
    "attempt": [0] * 9 + [-1],
    "rank": [0, 1, 2, 0, 1, 2, -4],
    "incarnation": [7, 8, 9, 2**62 + 1],
    "segment": [0, 1, 2, 3],
    "slot": list(range(40)),
    "ts": [NOON, NOON + timedelta(microseconds=1)] * 9 + [NOON - timedelta(days=1)],
    "metric": ["train/loss", "gpu/utilization", "optim/lr", "x"] * 4 + ["", "y" * 600],
    "step": [1, 2, None] * 4 + [-1],
    "value": [0.5, 0.1, None, 0.25] * 4 + [-1.0, 1e300, math.nan],
    "value_flag": [None, None, "nan", "odd"],
    "kind": ["gauge", "counter"] * 6 + [None, "size"],
    "weight": [None, 1.0, 2.5, 0.0] * 2 + [-0.5, math.nan],
    "agg_min": [None, 0.0, 1.0],
    "agg_max": [None, 1.0, 2.0] * 3 + [0.5],
    "agg_count": [None, 3, 2**53 + 1] * 3 + [0],
    "edge_flag": [None, "unregistered", "wrong_unit,out_of_range"] * 4 + ["quarantine:unregistered"],
}
SCALARS = st.lists(
    st.fixed_dictionaries({name: st.sampled_from(pool) for name, pool in POOLS.items()}), min_size=8, max_size=24
)


def outcome(site, table_name, judge, **options):
    """Return all that a scan says of the one partition of a table, by check."""
    one = contract(table_name)
    suite, handle = compile_suite(one, load_metrics()), delta_table(site.lake.store, table_name)
    part = Partition(DAY, handle.version(), files(handle))
    tallies = scan(site.lake.store, one, suite, part, judge, **options)
    return {
        expectation.check.id: (tally.checked, tally.failed, tally.seen, tally.error, tally.absent)
        for expectation, tally in zip(suite.expectations, tallies, strict=True)
    }


@pytest.mark.slow
@settings(
    max_examples=6,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(rows=SCALARS, batch_rows=st.integers(5, 20), judged_rows=st.integers(0, 5))
def test_the_screen_changes_no_result(judge, tmp_path_factory, rows, batch_rows, judged_rows):
    """Every tally is the same as if each row had been put to Great Expectations and each key been counted."""
    site = Site(tmp_path_factory.mktemp("screen"))
    scalars = contract("scalars")
    stored = pa.Table.from_pylist([row | {"date": DAY} for row in rows], schema=arrow_schema(scalars))
    replace_partitions(site.lake.tables, scalars, stored, [DAY])
    screened = outcome(site, "scalars", judge, batch_rows=batch_rows, judged_rows=judged_rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Hashes, "distinct", lambda _: False)
        every = outcome(site, "scalars", judge, batch_rows=batch_rows, judged_rows=len(rows))
    assert {name: (one, every[name]) for name, one in screened.items() if one != every[name]} == {}


def test_sound_rows_are_not_put_to_the_judge(site, judge):
    """Great Expectations sees the first rows, and columns in doubt alone of the rest."""
    slow = np.where(np.arange(100) == 60, 9.0, 0.01).astype(np.float32)
    rows = step_rows(100)
    site.bring(rows.set_column(rows.schema.get_field_index("data_time_s"), "data_time_s", pa.array(slow)))
    seen = []

    def watching(contract, rows, expectations, *, classified):
        seen.append((len(rows), len(expectations)))
        return judge(contract, rows, expectations, classified=classified)

    found = outcome(site, "steps", watching, batch_rows=30, judged_rows=10)
    (first, all_of_them), doubtful = seen
    assert (first, doubtful) == (10, (30, 1))
    assert all_of_them > 20
    assert found["data_within_step"][:2] == (100, 1)
    assert set(FORMS) >= {one.check.kind for one in compile_suite(contract("steps"), {}).expectations if one.per_row}


KEYS = st.lists(
    st.tuples(
        st.none() | st.integers(-2, 3) | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.integers(-3, 3),
        st.none() | st.sampled_from(["", "a", "b", "é"]),
        st.none() | st.integers(0, 3).map(lambda us: NOON + timedelta(microseconds=us)),
    ),
    max_size=60,
)
AGAIN = st.integers(0, 2)


@settings(max_examples=150, deadline=None)
@given(
    keys=st.builds(lambda keys, again: [*keys, *keys[:again]], KEYS, AGAIN),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    held_bytes=st.sampled_from([8, 64, 2**20]),
)
def test_hashes_know_whether_keys_repeat(keys, cuts, held_bytes):
    """Held or spilled, in whatever batches: they differ if and only if keys without NULL do."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.int32()), ("c", pa.string()), ("d", pa.timestamp("us", "UTC"))])
    rows = coded(pa.Table.from_pylist([dict(zip("abcd", key, strict=True)) for key in keys], schema=schema))
    ends = sorted({0, *(cut for cut in cuts if cut < len(keys)), len(keys)})
    whole = [key for key in keys if None not in key]
    with Hashes("abcd", len(keys), held_bytes) as hashes:
        assert sum(hashes.add(rows.slice(start, end - start)) for start, end in pairwise(ends)) == len(whole)
        assert hashes.distinct() == (max(Counter(whole).values(), default=1) == 1)


def test_hashes_of_many_keys_stay_small(tmp_path, monkeypatch):
    """Of a large partition hashes lie in files, each of about what may be held; they are gone in the end."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    count = 200_000
    segments, slots = np.repeat(np.arange(20), count // 20), np.tile(np.arange(count // 20), 20)
    mixed = np.random.default_rng(1).permutation(count)
    keys = pa.table({"segment": segments[mixed], "slot": slots[mixed]})
    with Hashes(["segment", "slot"], count, held_bytes=100_000) as hashes:
        for start in range(0, count, 7_000):
            hashes.add(keys.slice(start, 7_000))
        sizes = [file.stat().st_size for file in tmp_path.glob("*/*")]
        assert (len(sizes), sum(sizes)) == (16, count * 8)
        assert max(sizes) < 1.1 * count * 8 / 16
        assert hashes.distinct()
        hashes.add(keys.slice(123, 1))
        assert not hashes.distinct()
    assert list(tmp_path.iterdir()) == []


@st.composite
def numbered_keys(draw):
    """Keys of a few series whose numbers count up, mostly; some are missing, far away, out of order, or there twice."""
    keys = []
    for _ in range(draw(st.integers(0, 8))):
        low = draw(st.integers(0, 40) | st.sampled_from([-(2**63), 2**31 - 5, 2**63 - 100]))
        step = draw(st.sampled_from([1, 1, 1, 2, 7]))
        series = (draw(st.sampled_from(["a", "b", None])), draw(st.integers(0, 2)))
        keys += [(*series, low + step * at) for at in range(draw(st.integers(0, 12)))]
    if draw(st.booleans()):
        keys = list(draw(st.permutations(keys)))
    if keys and draw(st.booleans()):
        keys.insert(draw(st.integers(0, len(keys))), keys[draw(st.integers(0, len(keys) - 1))])
    return keys


@settings(max_examples=100, deadline=None)
@given(
    keys=numbered_keys(),
    cuts=st.lists(st.tuples(st.integers(0, 90), st.booleans()), max_size=5),
    held_bytes=st.sampled_from([8, 64, 2**20]),
    few=st.sampled_from([0, 2, 1024]),
)
def test_ranges_tell_what_hashes_tell(keys, cuts, held_bytes, few):
    """Whether numbers are marked, hashed, or hashed after some were marked, in whatever batches and files."""
    schema = pa.schema([("run", pa.string()), ("segment", pa.int32()), ("slot", pa.int64())])
    rows = coded(pa.Table.from_pylist([dict(zip(schema.names, key, strict=True)) for key in keys], schema=schema))
    ends = {cut: is_file for cut, is_file in cuts if cut < len(keys)} | {0: True, len(keys): True}
    whole = [key for key in keys if None not in key]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys_module, "_FEW", few)
        said = []
        for ranges_too in (True, False):
            with Hashes(schema.names, len(keys), held_bytes) as hashes:
                if not ranges_too:
                    hashes._hash_ranges()
                count = 0
                for start, end in pairwise(sorted(ends)):
                    count += hashes.add(rows.slice(start, end - start))
                    if ends[end]:
                        hashes.end_file()
                assert count == len(whole)
                said.append(hashes.distinct())
    assert said == [max(Counter(whole).values(), default=1) == 1] * 2


def test_slots_of_segments_are_marked_not_hashed(tmp_path, monkeypatch):
    """Sorted by metric, each a third of its segment's slots, nothing is written to disk, and one repeat is found."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    segment, metric, slot = (of.ravel() for of in np.meshgrid(range(50), range(3), range(400), indexing="ij"))
    order = np.lexsort((slot, segment, metric))
    keys = pa.table({"segment": segment[order], "slot": (slot * 3 + metric)[order]})
    with Hashes(["segment", "slot"], keys.num_rows, held_bytes=4 * keys.num_rows) as hashes:
        for start in range(0, keys.num_rows, 7_000):
            hashes.add(keys.slice(start, 7_000))
        assert hashes.distinct()
        assert [folder.name for folder in tmp_path.glob("*/*")] == []
        hashes.add(keys.slice(59_999, 1))
        assert not hashes.distinct()


def test_what_is_not_hashed_is_counted(site, judge, monkeypatch):
    """A key of a type that hashes do not do, and a hash that comes twice by chance, are left to the keys themselves."""
    with Hashes(["real"], 2) as hashes:
        hashes.add(pa.table({"real": [0.0, 1.0]}))
        assert not hashes.distinct()
    site.bring(step_rows(20))
    monkeypatch.setattr("ranklake.quality.keys._mix", lambda found, columns: None)
    monkeypatch.setattr("ranklake.quality.keys._Ranges.add", lambda _, keys: False)
    asked = []
    genuine = scanning.count_repeats
    monkeypatch.setattr(scanning, "count_repeats", lambda *given: asked.append(given[3]) or genuine(*given))
    assert outcome(site, "steps", judge)["steps_unique"][:2] == (20, 0)
    assert asked == [contract("steps").grain]
