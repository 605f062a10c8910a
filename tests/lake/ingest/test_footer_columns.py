"""What is the same in all rows of a segment stands in its footer: sealed and read back, rows are as they were."""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from segments import put_bytes

from ranklake.capture.sealing.constants import constants_in
from ranklake.capture.sealing.segment_bytes import parquet_bytes
from ranklake.lake.contracts.arrow import arrow_schema, conform
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest import batches
from ranklake.lake.ingest.batches import Loader
from ranklake.lake.ingest.footer_columns import MOST_CONSTANTS, constants_fault
from ranklake.lake.ingest.segment_reading import Intake, load
from ranklake.lake.ingest.spool.packs import Reader
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.store.writers import NO_SIGNERS
from ranklake.segments.segment import CONSTANT_CHARACTERS, IDENTITY, METADATA_KEY, SegmentFooter

GPUS = contract("gpu_samples")
SCHEMA = arrow_schema(GPUS, segment=True)
FLOAT32 = st.floats(width=32) | st.sampled_from([0.0, -0.0, math.nan, math.inf])
VALUES = {
    "device_name": st.text(max_size=3) | st.sampled_from(["", 'é\u2028"', "x" * 256, "x" * 257]),
    "host": st.text(max_size=2),
    "node_rank": st.integers(0, 2),
    "performance_state": st.integers(-(2**31), 2**31 - 1),
    "memory_total_bytes": st.sampled_from([0, -1, 2**63 - 1, -(2**63)]),
    "power_watts": FLOAT32,
    "power_limit_watts": FLOAT32,
    "ecc_enabled": st.booleans(),
    "row_remap_pending": st.booleans(),
}


@st.composite
def columns(draw):
    """Draw the values of a segment of some rows: each column of one value, of none, or of any."""
    count = draw(st.integers(1, 4))
    rows = {}
    for name, there in VALUES.items():
        values = there | st.none()
        same = draw(st.booleans())
        rows[name] = [draw(values)] * count if same else draw(st.lists(values, min_size=count, max_size=count))
    return count, rows


def table_of(count, values):
    """Return rows under the contract, without whose they are."""
    start = 1_767_225_600_000_000
    rows = {"slot": range(count), "ts": [start + second * 10**6 for second in range(count)], **values}
    arrays = []
    for field in SCHEMA:
        if field.name in IDENTITY:
            continue
        kind = pa.int64() if field.name == "ts" else field.type
        filler = None if field.nullable else {"string": "x"}.get(str(field.type), 0)
        arrays.append((field, pa.array(rows.get(field.name, [filler] * count), kind).cast(field.type)))
    return pa.table([array for _, array in arrays], schema=pa.schema([field for field, _ in arrays]))


def put(spool, number, rows):
    """Seal rows into the spool; return the segment's footer and its row of a plan."""
    owner = {"run": "r1", "attempt": 0, "rank": number % 3, "incarnation": 7 + number, "segment": 0}
    facts = {"rows": rows.num_rows, "constants": constants_in(rows, GPUS)}
    footer = SegmentFooter("gpu_samples", GPUS.version, world_size=4, **owner, **facts)
    return footer, put_raw(spool, footer, parquet_bytes(rows, footer))


def put_raw(spool, footer, raw):
    """Write bytes into the spool; return their row of a plan."""
    path = put_bytes(spool, raw, footer, "gpu_samples")
    digest = path.name.rpartition("~")[2].partition(".")[0]
    facts = {"path": str(path), "others": [], "sha256": digest, "bytes": len(raw)}
    return {**facts, "rows": footer.rows, "seen": "", "table": "gpu_samples"}


def whole(rows, footer):
    """Return rows as ingest should have them."""
    said = {name: [getattr(footer, name)] * rows.num_rows for name in IDENTITY}
    for name, values in said.items():
        rows = rows.append_column(name, pa.array(values, SCHEMA.field(name).type))
    return conform(rows, GPUS, segment=True)


def bits(rows):
    """Return columns so that equal means of the same bits: NaN is NaN, 0.0 is not -0.0."""
    columns = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if pa.types.is_floating(column.type):
            there = column.drop_null().to_numpy()
            columns[name] = [column.is_null().to_pylist(), there.view(f"u{there.itemsize}").tolist()]
        else:
            columns[name] = column.to_pylist()
    return columns


ONE_NAN = (2, {"power_watts": [math.nan, math.nan], "power_limit_watts": [-0.0, 0.0], "device_name": ["", ""]})
MINUS = (2, {"power_watts": [-0.0, -0.0], "power_limit_watts": [None, 1.0], "device_name": ["x" * 257] * 2})


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some=st.lists(columns(), min_size=1, max_size=4))
def test_any_rows_come_back_as_they_were(lake, tmp_path_factory, monkeypatch, some):
    """Many segments together and each alone give the values, bit by bit; nothing sound needs the careful way."""
    come_back(lake, tmp_path_factory.mktemp("spool"), monkeypatch, some)


@pytest.mark.parametrize("some", [[ONE_NAN, MINUS], [MINUS, ONE_NAN, MINUS], [ONE_NAN], [MINUS]])
def test_rows_come_back_as_they_were(lake, spool, monkeypatch, some):
    """NaN, -0.0 beside 0.0, text that is too long for a footer, and a column that is constant in some segments."""
    come_back(lake, spool, monkeypatch, some)


def come_back(lake, spool, monkeypatch, some):
    """Seal segments and read them together and alone."""
    tables = [table_of(count, values) for count, values in some]
    sealed = [put(spool, number, rows) for number, rows in enumerate(tables)]
    intake, reader = Intake(lake.store, GPUS, NO_SIGNERS, lake.config.ingest), Reader(Spool(str(spool)).fs, [])
    meant = [bits(whole(rows, footer)) for rows, (footer, _) in zip(tables, sealed, strict=True)]
    alone = [load(intake, reader.read, row) for _, row in sealed]
    assert [bits(conform(next(one.parts(GPUS)), GPUS, segment=True)) for one in alone] == meant
    monkeypatch.setattr(batches, "load", None)
    (loaded,) = Loader(intake, reader, 2**20).load([row for _, row in sealed])
    (part,) = loaded.rows
    starts = np.cumsum([0, *part.counts])
    together = [part.table.slice(begin, count) for begin, count in zip(starts, part.counts, strict=False)]
    assert [bits(conform(one, GPUS, segment=True)) for one in together] == meant


def test_what_a_footer_has_the_file_has_not():
    """Numbers and short texts of one value go there; personal ones, JSON, times and what ingest looks at do not."""
    rows = table_of(
        3, {"power_watts": [7.0] * 3, "host": ["h"] * 3, "device_name": ["H100"] * 3, "node_rank": [0, 1, 2]}
    )
    constants = constants_in(rows, GPUS)
    assert constants["float32"] == {"power_watts": 7.0}
    assert constants["string"]["device_name"] == "H100"
    assert {"host", "slot", "ts", "node_rank"}.isdisjoint(name for values in constants.values() for name in values)
    assert constants_in(rows.slice(0, 0), GPUS) == {}
    sizes = []
    for kept in ({}, constants):
        footer = SegmentFooter("gpu_samples", GPUS.version, "r1", 0, 0, 4, 7, 0, rows=3, constants=kept)
        sizes.append(len(parquet_bytes(rows, footer)))
    assert sizes[1] < sizes[0]


HOSTILE = {
    "of whose they are": {"int32": {"rank": 5}},
    "of the run": {"string": {"run": "r9"}},
    "of a slot": {"int32": {"slot": 5}},
    "of refused rows": {"string": {"refused": "x"}},
    "twice": {"int32": {"node_rank": 1}, "int64": {"node_rank": 1}},
    "a type of no constant": {"date": {"node_rank": "2026-01-01"}},
    "too large": {"int32": {"node_rank": 2**31}},
    "true for 1": {"int32": {"node_rank": True}},
    "1 for 1.0": {"float32": {"power_watts": 1}},
    "beyond float32": {"float32": {"power_watts": 1e300}},
    "no number": {"float32": {"power_watts": math.nan}},
    "a long text": {"string": {"device_name": "x" * (CONSTANT_CHARACTERS + 1)}},
    "NULL": {"string": {"device_name": None}},
    "many": {"int32": {f"c{number}": 1 for number in range(MOST_CONSTANTS + 1)}},
    "a list": [],
    "a list within": {"int32": []},
}


@pytest.mark.parametrize("constants", HOSTILE.values(), ids=HOSTILE)
def test_constants_that_are_none_are_refused(constants):
    """No value is quoted."""
    clause = constants_fault(json.loads(json.dumps(constants)))
    assert clause is not None
    assert "x" * 9 not in clause


@pytest.mark.parametrize(
    ("constants", "reason"),
    [
        ({"int32": {"rank": 5}}, "footer.constants"),
        ({"float32": {"power_watts": 1.5}}, "the same in all rows"),
        ({"int64": {"node_rank": 1}}, ""),
        ({"int32": {"device_name": 1}}, "device_name"),
        ({"int32": {"unheard_of": 1}}, "newer than"),
        ({"string": {"device_name": "\ud800"}}, "Unicode"),
    ],
)
def test_a_footer_that_contradicts_its_file_is_set_aside(lake, spool, constants, reason):
    """It is set aside or waits, and costs nobody else's rows; an int64 that fits is what the contract has."""
    rows = table_of(2, {"power_watts": [1.0, 2.0]})
    plan = [put(spool, number, rows)[1] for number in (0, 2)]
    footer = SegmentFooter("gpu_samples", GPUS.version, "r1", 0, 1, 4, 8, 0, rows=2, constants=constants)
    plan.insert(1, put_raw(spool, footer, with_footer(rows, footer)))
    found = loaded(lake, spool, plan)
    assert [one.unreadable for one in (found[0], found[2])] == [None, None]
    assert (reason in found[1].unreadable) if reason else found[1].unreadable is None


def test_a_required_column_that_one_lacks_is_seen_beside_those_that_may_be_null(lake, spool):
    """A foreign writer may call all columns optional: put together, rows of the one would have no slot."""
    rows = table_of(2, {})
    rows = rows.cast(pa.schema([field.with_nullable(nullable=True) for field in rows.schema]))
    plan = []
    for number, some in enumerate((rows, rows.drop_columns("slot"), rows)):
        footer = SegmentFooter("gpu_samples", GPUS.version, "r1", 0, number, 4, 7 + number, 0, rows=2)
        plan.append(put_raw(spool, footer, with_footer(some, footer)))
    reasons = [one.unreadable for one in loaded(lake, spool, plan)]
    assert reasons[::2] == [None, None]
    assert "slot" in reasons[1]


def loaded(lake, spool, plan):
    """Return the segments of a plan."""
    intake, reader = Intake(lake.store, GPUS, NO_SIGNERS, lake.config.ingest), Reader(Spool(str(spool)).fs, [])
    return [one for part in Loader(intake, reader, 2**20).load(plan) for one in part.segments]


def with_footer(rows, footer):
    """Return a file of rows, without two columns, whose footer says what it likes."""
    every = rows.drop_columns(["device_name", "node_rank"]).replace_schema_metadata({METADATA_KEY: footer.to_json()})
    sink = pa.BufferOutputStream()
    pq.write_table(every, sink)
    return sink.getvalue().to_pybytes()
