"""The compaction engine against the plain way of doing the same: what it leaves out must never show."""

from collections import Counter
from datetime import date, timedelta
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import telemetry
from bringing import bring
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from segments import DAY, put_segment, step_rows

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.checks.registry import failures, fault_text
from ranklake.lake.contracts.edge import reject_reasons
from ranklake.lake.contracts.json_text import is_json
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest import execution, segment_reading, task
from ranklake.lake.ingest.deduplication import first_of_key, joined_slots, seen_before, slot_texts
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables import order as order_module
from ranklake.lake.tables import parquet
from ranklake.lake.tables.order import sort_names, sort_order, take_rows
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import ensure_table
from ranklake.segments.segment import SegmentName

STEPS = contract("steps")


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.tuples(st.integers(1, 2), st.integers(0, 1)), st.lists(st.integers(0, 9) | st.none(), min_size=1)),
        min_size=1,
    ),
    st.dictionaries(st.tuples(st.integers(1, 2), st.integers(0, 1)), st.lists(st.integers(0, 9))),
)
def test_first_of_key_is_the_first_of_each_key(segments, seen):
    """The rows that are kept are those that a walk over all keys keeps; rows without a whole key are all kept."""
    known = {(*owner, slot) for owner, slots in seen.items() for slot in slots}
    expected = []
    for owner, slots in segments:
        for slot in slots:
            expected.append(slot is None or (*owner, slot) not in known)
            known.add((*owner, slot))
    flat = [slot for _, slots in segments for slot in slots]
    keyed = None if None not in flat else np.array([slot is not None for slot in flat])
    starts = np.cumsum([0, *(len(slots) for _, slots in segments[:-1])])
    before = {owner: np.array(slots, np.int64) for owner, slots in seen.items()}
    owners = [owner for owner, _ in segments]
    found = first_of_key(np.array([slot or 0 for slot in flat], np.int32), keyed, starts, owners, before)
    assert (found is None) == all(expected)
    assert found is None or found.tolist() == expected


COLUMNS = {
    "text": (pa.string(), st.sampled_from(["a", "b", "ba", ""])),
    "words": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["x", "y", "z"])),
    "small": (pa.int32(), st.integers(-3, 3)),
    "large": (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3)),
    "ts": (pa.timestamp("us", "UTC"), st.integers(0, 2**50)),
    "flag": (pa.bool_(), st.booleans()),
    "value": (pa.float64(), st.floats(allow_nan=False)),
    "nothing": (pa.null(), st.none()),
}


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_order_is_arrow_s(data):
    """The order is Arrow's own, NULLs last and ties as they came; a column that is left as it is says so."""
    keys = data.draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=4, unique=True))
    count = data.draw(st.integers(0, 30))
    chunks = data.draw(st.integers(1, 3))
    columns = {}
    for name in keys:
        type_, values = COLUMNS[name]
        some = data.draw(st.lists(values | st.none(), min_size=count, max_size=count))
        parts = [pa.array(part.tolist(), type_) for part in np.array_split(np.array(some, object), chunks)]
        columns[name] = pa.chunked_array(parts, type_)
    rows = pa.table({**columns, "at": pa.array(range(count))})
    with mock.patch.object(order_module, "_BLOCK_ROWS", data.draw(st.integers(1, 40))):
        order, settled = sort_order(rows, keys)
    plain = pa.table({name: rows[name].cast(pa.string()) if name == "words" else rows[name] for name in keys})
    sortable = [name for name in keys if name != "nothing"]
    expected = list(range(count))
    if sortable and count:
        expected = pc.sort_indices(plain, sort_keys=[(name, "ascending") for name in sortable]).to_pylist()
    found = expected if order is None else order.tolist()
    assert found == expected
    assert order is None or found != list(range(count))
    for name in settled:
        assert plain[name].take(pa.array(found, pa.int64())).to_pylist() == plain[name].to_pylist()


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_what_is_taken_is_what_arrow_takes(data):
    """Of every type, with NULLs or none, of an array that begins within another one."""
    type_, values = COLUMNS[data.draw(st.sampled_from(sorted(COLUMNS)))]
    whole = pa.array(data.draw(st.lists(values | st.none(), min_size=1, max_size=40)), type_)
    begin = data.draw(st.integers(0, len(whole) - 1))
    part = whole.slice(begin, data.draw(st.integers(1, len(whole) - begin)))
    places = data.draw(st.lists(st.integers(0, len(part) - 1), max_size=40))
    found = take_rows(part, np.array(places, np.int64))
    found.validate(full=True)
    assert found.equals(part.take(pa.array(places, pa.int64())))
    assert found.null_count == found.to_pylist().count(None)


def bad_json(column):
    """Return for each row whether its text is no JSON; NULL is none that is bad."""
    return pa.array([text is not None and not is_json(text) for text in column.to_pylist()])


def plain_reject_reasons(table, rows):
    """Judge each row by each check, as text says it."""
    reasons = [None] * rows.num_rows
    verdicts = [
        ("required", f"{column.name} is NULL", pc.is_null(rows[column.name]))
        for column in table.columns
        if column.required and column.name in rows.column_names
    ]
    for column in table.columns:
        if column.type.startswith("float") and column.name in rows.column_names:
            finite = pc.fill_null(pc.is_finite(rows[column.name]), fill_value=True)
            verdicts.append(("finite", f"{column.name} is NaN or infinite", pc.invert(finite)))
    verdicts += [
        ("json", f"{column.name} is no JSON that can be parsed", bad_json(rows[column.name]))
        for column in table.columns
        if column.format == "json" and column.name in rows.column_names
    ]
    verdicts += [
        (check.id, fault_text(check), failures(check, rows))
        for check in table.all_checks()
        if check.quarantines and set(check.columns) <= set(rows.column_names)
    ]
    for check_id, what, failed in verdicts:
        for at, bad in enumerate(failed.to_pylist()):
            if bad and reasons[at] is None:
                reasons[at] = f"{check_id}: {what}"
    return reasons


FLOATS = st.sampled_from([0.5, 1.0, -1.0, float("nan"), float("inf"), -float("inf")])
GOOD = {"run": "r1", "attempt": 0, "rank": 0, "incarnation": 7, "segment": 0, "slot": 0, "step": 1, "step_time_s": 1.0}
GOOD |= {"ts": 1_700_000_000_000_000, "metric": "m", "value": 1.0, "name": "n", "kind": "phase", "span_id": 1}
GOOD |= {"duration_ns": 1}
VALUES = {
    "string": st.sampled_from(["r1", "nan", "gauge", "", "a b", "quarantine:wrong_unit", "unregistered"]),
    "int32": st.integers(-1, 3),
    "int64": st.integers(-1, 3),
    "float32": FLOATS,
    "float64": FLOATS,
    "bool": st.booleans(),
    "timestamp": st.sampled_from([0, 1_700_000_000_000_000, 2**62, -(2**62)]),
}


@pytest.mark.parametrize("name", ["steps", "scalars", "spans"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
@pytest.mark.slow
def test_what_the_judge_clears_is_good(name, data):
    """Reasons are those of judging every row by every check; text may have a dictionary, empty columns may be bare."""
    table = contract(name)
    schema = arrow_schema(table, segment=True)
    count = data.draw(st.integers(1, 4))
    good = dict.fromkeys(schema.names) | GOOD
    judged = [column.name for column in table.columns if column.checks or column.type in VALUES]
    wild = data.draw(st.sets(st.sampled_from([name for name in judged if name != "date"]), min_size=1, max_size=4))
    plain, given_ = {}, {}
    for field in schema:
        values = [good.get(field.name)] * count
        if field.name in wild:
            of_type = VALUES[table.column(field.name).type]
            values = data.draw(st.lists(of_type | st.none(), min_size=count, max_size=count))
        array = pa.array(values, field.type)
        plain[field.name] = array
        if array.null_count == count and field.nullable:
            array = pa.nulls(count)
        elif pa.types.is_string(field.type) and data.draw(st.booleans()):
            array = array.dictionary_encode()
        given_[field.name] = pa.chunked_array([array])
    assert reject_reasons(table, pa.table(given_)).to_pylist() == plain_reject_reasons(table, pa.table(plain))


@pytest.mark.parametrize(("value", "flag", "bad"), [("v", "", 0), ("", "f", 0), ("v", "f", 1), ("", "", 1)])
def test_a_value_or_a_flag(value, flag, bad):
    """Of two columns exactly one has a value, in all rows or in some: columns without any are bare."""
    rows = telemetry.segment_rows("scalars", 0, 0, 4)
    values = pa.array([1.0] * 4, pa.float64()) if value else pa.nulls(4)
    flags = pa.array(["nan"] * 4).dictionary_encode() if flag else pa.nulls(4)
    columns = dict(zip(rows.column_names, rows.columns, strict=True)) | {"value": values, "value_flag": flags}
    reasons = reject_reasons(contract("scalars"), pa.table(columns))
    assert reasons.null_count == (0 if bad else 4)


def plain_fates(segments, seen):
    """Return what becomes of each segment's rows, by walking over them: a list of (stored, rejected, duplicate)."""
    fates, stored, refused = [], Counter(), Counter()
    for rows in segments:
        counts = [0, 0, 0]
        for row in rows.select(["incarnation", "segment", "slot", "step_time_s"]).to_pylist():
            key = (row["incarnation"], row["segment"], row["slot"])
            if None not in key and key in seen:
                counts[2] += 1
                continue
            seen.add(key)
            bad = row["slot"] is None or row["step_time_s"] < 0
            counts[1 if bad else 0] += 1
            (refused if bad else stored)[key] += 1
        fates.append(tuple(counts))
    return fates, stored, refused


def keys(lake, table):
    rows = read(lake.tables, contract(table), ["incarnation", "segment", "slot"])
    return Counter(zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True))


SEGMENT = st.tuples(
    st.integers(0, 2),  # slot file
    st.lists(st.integers(0, 12) | st.just(3), min_size=1, max_size=12),  # slots, in no order, some twice
    st.booleans(),  # whether its slots rise, as those of the sealer do
    st.sets(st.integers(0, 12), max_size=2),  # slots of bad rows
    st.integers(0, 40),  # hours from the day's beginning
)


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rounds=st.lists(st.lists(SEGMENT, max_size=5), min_size=1, max_size=3),
    piece=st.sampled_from([1, 3000, 10**9]),
    stretch=st.sampled_from([1, 8192]),
)
def test_every_row_has_the_fate_of_a_plain_walk(tmp_path_factory, monkeypatch, rounds, piece, stretch):
    """Segments in any number of plans, sealed again with other cuts, with bad rows: as one row after the other.

    However small the pieces are that a task holds, and the parts that a segment is read in; repeats are cut out, or
    filtered.
    """
    monkeypatch.setattr(execution, "PIECE_BYTES", piece)
    monkeypatch.setattr(segment_reading, "PART_ROWS", 5 if piece < 10**9 else 10**6)
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 4)
    monkeypatch.setattr(task, "_SLICE_ROWS", stretch)
    place = tmp_path_factory.mktemp("lake")
    lake, spool = Lake.create(str(place / "lake")), place / "spool"
    seen, stored, refused, names = set(), Counter(), Counter(), set()
    wrong = {}
    for number, segments in enumerate(rounds):
        made = []
        for number_in_round, (segment, slots, rises, bad, hours) in enumerate(segments):
            chosen = sorted(set(slots)) if rises else slots
            rows = step_rows(13, segment=segment, start=DAY + timedelta(hours=hours)).take(pa.array(chosen))
            refusing = wrong.setdefault(segment, bad)  # one row a slot, in whichever cut
            times = [-1.0 if slot in refusing else 0.5 for slot in chosen]
            at = rows.schema.get_field_index("step_time_s")
            rows = rows.set_column(at, rows.schema.field(at), pa.array(times, pa.float32()))
            before = 100 * number + number_in_round
            path = put_segment(spool, rows, rows_before=before)
            if path.name not in names:
                names.add(path.name)
                made.append((segment, path.name.rpartition("~")[2], rows))
        made.sort(key=lambda one: one[:2])
        fates, new, new_refused = plain_fates([rows for *_, rows in made], seen)
        stored += new
        refused += new_refused
        done = bring(lake, spool)
        found = (done.rows_stored, done.rows_rejected, done.rows_duplicate)
        assert found == tuple(map(sum, zip(*fates, strict=True))) if fates else (0, 0, 0)
    assert keys(lake, "steps") == stored
    assert keys(lake, "rejects") == refused
    for path in (place / "lake" / "tables" / "steps").rglob("*.parquet"):
        rows = pq.ParquetFile(path).read()
        assert sort_order(rows, sort_names(STEPS))[0] is None, "a file is not in its order"
        assert set(pc.cast(rows["ts"], pa.date32()).to_pylist()) == {date.fromisoformat(path.parent.name[5:])}


def test_columns_without_a_value_are_not_written(lake, spool):
    """What is NULL in all rows of a file is not in the file; readers see it, and the log knows how many there are."""
    put_segment(spool, step_rows(10))
    bring(lake, spool)
    (path,) = Path(lake.store.root).glob("tables/steps/*/*.parquet")
    assert "grad_norm" not in pq.read_schema(path).names
    rows = read(lake.tables, STEPS)
    assert rows["grad_norm"].null_count == 10
    actions = pa.table(ensure_table(lake.tables, STEPS).get_add_actions(flatten=True))
    assert actions["null_count.grad_norm"].to_pylist() == [10]


def test_a_large_segment_that_is_damaged_at_its_end_stores_nothing(lake, spool, monkeypatch):
    """A segment that is read in parts is checked to its end before the first part is stored."""
    monkeypatch.setattr(segment_reading, "PART_ROWS", 16)
    monkeypatch.setattr(execution, "PIECE_BYTES", 1)
    rows = step_rows(100)
    theirs = pa.array([7] * 99 + [8], pa.int64())
    at = rows.schema.get_field_index("incarnation")
    put_segment(spool, rows.set_column(at, rows.schema.field(at), theirs))
    put_segment(spool, step_rows(100, segment=1))
    done = bring(lake, spool)
    assert (done.unreadable, done.rows_stored) == (1, 100)
    assert {segment for _, segment, _ in keys(lake, "steps")} == {1}


@given(
    segments=st.lists(st.lists(st.integers(-3, 12) | st.sampled_from([-(2**31), 2**31 - 1]), min_size=1), min_size=1),
    rises=st.booleans(),
    data=st.data(),
)
def test_slots_are_told_as_ranges(segments, rises, data):
    """What is written of a segment's slots gives them back, whatever they are; several cuts give the union."""
    segments = [sorted(set(slots)) if rises else slots for slots in segments]
    counts = [len(slots) for slots in segments]
    starts = np.cumsum([0, *counts[:-1]])
    slots = np.concatenate([np.array(own, np.int32) for own in segments])
    keyed = np.array(data.draw(st.lists(st.booleans(), min_size=len(slots), max_size=len(slots))))
    with_key = data.draw(st.booleans())
    texts = slot_texts(slots, keyed if with_key else None, starts)
    meant = [
        {slot for slot, has in zip(own, keyed[start:], strict=False) if has or not with_key}
        for own, start in zip(segments, starts.tolist(), strict=True)
    ]
    path = str(SegmentName("x", 0, 0, 7, 3, 1, "0" * 64))
    for text, own in [*zip(texts, meant, strict=True), (joined_slots(texts), set().union(*meant))]:
        found = seen_before([{"path": path, "seen": text}]).get((7, 3), np.array([], int))
        assert sorted(found.tolist()) == sorted(own)


@pytest.mark.parametrize("sorted_", [True, False])
def test_a_row_group_has_its_own_words(lake, monkeypatch, sorted_):
    """Of a large dictionary each row group is written with the words that stand in it, and not with all."""
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 100)
    monkeypatch.setattr(parquet, "_DICTIONARY_BYTES", 1000)
    rows = telemetry.segment_rows("spans", 0, 0, 400)
    rows = rows if sorted_ else rows.take(pa.array(np.random.default_rng(0).permutation(400)))
    names = pa.array([None if number % 7 == 0 else f"{number // 2:>100}" for number in range(400)])
    place = rows.schema.get_field_index("process_group")
    text = rows.set_column(place, rows.schema.field("process_group"), names)
    words = rows.set_column(place, "process_group", names.dictionary_encode())
    sizes, stored = [], []
    for some in (text, words):
        file = parquet.write_partition(lake.store, contract("spans"), some, DAY.date(), 1)
        found = pq.ParquetFile(lake.path("tables", "spans", file.path))
        assert found.num_row_groups == 4
        group = found.metadata.row_group(2)
        columns = {group.column(index).path_in_schema: group.column(index) for index in range(group.num_columns)}
        sizes.append(columns["process_group"].total_uncompressed_size)
        stored.append(found.read())
    assert stored[0].equals(stored[1])
    assert sizes[1] <= 1.1 * sizes[0]


def test_a_trace_can_be_looked_up(lake):
    """Ids that no order brings together have a Bloom filter; other columns have none."""
    rows = telemetry.segment_rows("spans", 0, 0, 500)
    ids = pa.array([f"{number:032x}" for number in range(500)])
    rows = rows.set_column(rows.schema.get_field_index("trace_id"), rows.schema.field("trace_id"), ids)
    file = parquet.write_partition(lake.store, contract("spans"), rows, DAY.date(), 1)
    group = pq.ParquetFile(lake.path("tables", "spans", file.path)).metadata.row_group(0)
    columns = [group.column(index).to_dict() for index in range(group.num_columns)]
    assert [column["path_in_schema"] for column in columns if column.get("bloom_filter_offset")] == ["trace_id"]
