"""Many segments looked at together: the same rows, owners, moments and reasons as one by one."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import telemetry
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from segments import put_bytes

from ranklake.capture.sealing.constants import constants_in
from ranklake.capture.sealing.segment_bytes import parquet_bytes
from ranklake.lake.contracts.arrow import conform
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest import batches, segment_columns
from ranklake.lake.ingest.batches import Loader
from ranklake.lake.ingest.segment_reading import Intake, load
from ranklake.lake.ingest.spool.packs import Reader
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.store.writers import NO_SIGNERS
from ranklake.segments.segment import IDENTITY, METADATA_KEY, SegmentFooter

SCALARS = contract("scalars")


def changed(rows, name, values):
    """Return rows with another column in the place of one, or without it."""
    place = rows.schema.get_field_index(name)
    return rows.remove_column(place) if values is None else rows.set_column(place, name, values)


def in_row(name, value):
    """Return a change of one row's value."""

    def change(rows, at):
        values = rows[name].to_pylist()
        values[at % len(values)] = value
        return changed(rows, name, pa.array(values, rows.schema.field(name).type))

    return change


def not_utf8(rows, at):
    """Return rows of which one has text that is none."""
    words = [b"loss"] * rows.num_rows
    words[at % rows.num_rows] = b"\xff\xfe"
    bad = pa.array(words, pa.binary())
    return changed(rows, "metric", pa.StringArray.from_buffers(len(bad), bad.buffers()[1], bad.buffers()[2]))


CHANGES = {
    "nothing": lambda rows, _: rows,
    "flags": lambda rows, _: changed(rows, "edge_flag", pa.array(["range:loss"] * rows.num_rows)),
    "another run": in_row("run", "r9"),
    "no run": in_row("run", None),
    "another rank": in_row("rank", 77),
    "no rank": in_row("rank", None),
    "another segment": in_row("segment", 77),
    "another process": in_row("incarnation", 77),
    "another attempt": in_row("attempt", 77),
    "no time": in_row("ts", None),
    "a wide rank": lambda rows, _: changed(rows, "rank", rows["rank"].cast(pa.int64())),
    "text for numbers": lambda rows, _: changed(rows, "slot", rows["slot"].cast(pa.string())),
    "no column": lambda rows, _: changed(rows, "slot", None),
    "another column": lambda rows, _: rows.append_column("more", pa.nulls(rows.num_rows, pa.int32())),
    "no column of the run": lambda rows, _: rows.drop_columns("run"),
    "a column of another rank alone": lambda rows, _: in_row("rank", 77)(rows.drop_columns(list(IDENTITY[:2])), 0),
    "a column twice": lambda rows, _: rows.append_column("slot", rows["slot"]),
    "not UTF-8": not_utf8,
}
FOOTERS = [{}, {}, {}, {}, {"rank": 5}, {"contract_version": 99}, {"rows": 3}, {"gaps": {"x": 2}}, {"format": 2}]


def damage(raw, how, at):
    """Return bytes that are not as they were, and whether their name has the digest of the damaged ones."""
    at %= len(raw)
    return {
        "": (raw, True),
        "flipped": (bytes([*raw[:at], raw[at] ^ 4, *raw[at + 1 :]]), False),
        "flipped, named so": (bytes([*raw[:at], raw[at] ^ 4, *raw[at + 1 :]]), True),
        "cut": (raw[:at], True),
        "gone": (raw, True),
    }[how]


ONE = st.tuples(
    st.sampled_from([*["nothing"] * 12, *CHANGES]),
    st.sampled_from(FOOTERS),
    st.sampled_from(["", "", "", "", "", "", "flipped", "flipped, named so", "cut", "gone"]),
    st.booleans(),  # written by the sealer, or plainly
    st.integers(1, 5),  # rows
    st.integers(0, 10**6),
)


def put(spool, number, one):
    """Write a segment, and return its row of a plan."""
    change, said, how, sealed, count, at = one
    rows = telemetry.segment_rows("scalars", number % 3, number, count)
    owner = rows.slice(0, 1).select(IDENTITY).to_pylist()[0]
    rows = CHANGES[change](rows, at)
    footer = SegmentFooter("scalars", SCALARS.version, world_size=1, rows=count, **owner)
    if sealed and change != "a column twice":  # the sealer goes by names
        if change in {"nothing", "flags"}:
            rows = rows.drop_columns(list(IDENTITY))
            footer = replace(footer, constants=constants_in(rows, SCALARS))
        raw = parquet_bytes(rows, replace(footer, **said))
    else:
        sink = pa.BufferOutputStream()
        pq.write_table(rows.replace_schema_metadata({METADATA_KEY: replace(footer, **said).to_json()}), sink)
        raw = sink.getvalue().to_pybytes()
    wreck, named_so = damage(raw, how, at)
    path = put_bytes(spool, wreck if named_so else raw, footer, "scalars")
    if not named_so:
        path.write_bytes(wreck)
    size = path.stat().st_size
    if how == "gone":
        path.unlink()
    digest = path.name.rpartition("~")[2].partition(".")[0]
    return {
        "path": str(path),
        "others": [],
        "sha256": digest,
        "bytes": size,
        "rows": count,
        "seen": "",
        "table": "scalars",
    }


def plain_one(change="nothing", said=None, how="", *, sealed=True):
    """Return what `put` makes of one fault."""
    return change, said or {}, how, sealed, 5, 2


def intake(lake):
    """Return by what segments of ``scalars`` are read."""
    return Intake(lake.store, SCALARS, NO_SIGNERS, lake.config.ingest)


def one_by_one(lake, reader, plan):
    """Return outcomes, and each segment's rows, by the careful way."""
    found = []
    for row in plan:
        segment = load(intake(lake), reader.read, row)
        rows = [] if segment.unreadable else list(segment.parts(SCALARS))
        found.append((segment.outcome("scalars"), plain(rows)))
    return found


def plain(parts):
    """Return rows as Python sees them, NULL where there is no column."""
    return [row for part in parts for row in conform(part, SCALARS, segment=True).to_pylist()]


def same(lake, spool, some):
    """Assert that segments come to the same together and one by one; return the outcomes."""
    plan = [put(spool, number, one) for number, one in enumerate(some)]
    fs = Spool(str(spool)).fs
    meant = one_by_one(lake, Reader(fs, []), plan)
    found, rows = [], {}
    for loaded in Loader(intake(lake), Reader(fs, []), 2**20).load(plan):
        found += loaded.segments
        for part in loaded.rows:
            begin = 0
            for owner, count in zip(part.owners, part.counts, strict=True):
                rows[owner.path] = [*rows.get(owner.path, []), *plain([part.table.slice(begin, count)])]
                begin += count
            assert begin == part.table.num_rows
    assert [segment.outcome("scalars") for segment in found] == [outcome for outcome, _ in meant]
    assert [rows.get(segment.path, []) for segment in found] == [theirs for _, theirs in meant]
    return [outcome for outcome, _ in meant]


@pytest.mark.slow
@pytest.mark.parametrize(("at_once", "large_rows"), [(2, 4096), (256, 4096), (256, 1)])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some=st.lists(ONE, min_size=1, max_size=8))
def test_together_as_one_by_one(lake, tmp_path_factory, monkeypatch, at_once, large_rows, some):
    """What is said of each segment, and its rows, are as the careful way has them, whatever is wrong with some."""
    monkeypatch.setattr(batches, "BATCH_SEGMENTS", at_once)
    monkeypatch.setattr(segment_columns, "_LARGE_ROWS", large_rows)
    same(lake, tmp_path_factory.mktemp("spool"), some)


FAULTS = [
    *[(change, plain_one(change)) for change in CHANGES],
    *[(f"footer {said}", plain_one(said=said)) for said in FOOTERS if said],
    *[(how, plain_one(how=how)) for how in ("flipped", "flipped, named so", "cut", "gone")],
]


@pytest.mark.parametrize("large_rows", [4096, 1])
@pytest.mark.parametrize("fault", [fault for _, fault in FAULTS], ids=[name for name, _ in FAULTS])
def test_one_fault_among_sound_ones(lake, spool, monkeypatch, fault, large_rows):
    """A fault is seen wherever it stands, and said of its segment alone, be segments small or large."""
    monkeypatch.setattr(segment_columns, "_LARGE_ROWS", large_rows)
    outcomes = same(lake, spool, [plain_one(), fault, plain_one(), plain_one("flags")])
    assert [outcome["unreadable"] for outcome in outcomes[:1] + outcomes[2:]] == [None] * 3


def test_sound_segments_are_not_looked_at_one_by_one(lake, spool, monkeypatch):
    """Segments as the sealer writes them, of some shapes, never go the careful way: it costs four times as much."""
    plan = [put(spool, number, (("nothing", "flags")[number % 3 == 0], {}, "", True, 5, 0)) for number in range(20)]
    monkeypatch.setattr(batches, "load", None)
    loaded = list(Loader(intake(lake), Reader(Spool(str(spool)).fs, []), 2**20).load(plan))
    assert [len(one.segments) for one in loaded] == [20]
    (rows,) = loaded[0].rows
    assert rows.table.num_rows == 100
    assert rows.table["edge_flag"].null_count == 65
    assert Path(lake.path("quarantine")).exists() is False


@pytest.mark.parametrize("place", [7, -1])
def test_a_place_that_a_dictionary_lacks_is_seen(place):
    """Whoever writes a file by hand may have such places; to look a word up there would be to read foreign memory."""
    words = pa.DictionaryArray.from_arrays(pa.array([0, place, 1], pa.int32()), ["a", "b"], safe=False)
    for large in (False, True):
        counts = np.array([3 if not large else segment_columns._LARGE_ROWS])
        times = 1 if not large else segment_columns._LARGE_ROWS // 3 + 1
        column = pa.chunked_array([pa.concat_arrays([words] * times).slice(0, int(counts[0]))])
        with pytest.raises(pa.ArrowInvalid):
            segment_columns.validate(column, counts)
