"""Segments made by hand, for tests of ingest that must not depend on the recorder."""

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.segments.segment import METADATA_KEY, SegmentFooter, SegmentName

DAY = datetime(2026, 3, 1, tzinfo=UTC)


def step_rows(count, *, segment=0, rank=0, incarnation=7, run="r1", attempt=0, start=DAY, first_slot=0, seed=0):
    """Return rows of ``steps`` as a segment holds them: one a second, from `start`."""
    times, losses = (np.random.default_rng([seed + rank + segment, of]) for of in (0, 1))
    slots = np.arange(first_slot, first_slot + count)  # a slot's values are the same in whatever cut of its file
    steps = segment * 1_000_000 + slots
    columns = {
        "run": [run] * count,
        "attempt": np.full(count, attempt, np.int32),
        "rank": np.full(count, rank, np.int32),
        "incarnation": np.full(count, incarnation, np.int64),
        "segment": np.full(count, segment, np.int32),
        "slot": slots.astype(np.int32),
        "ts": [start + timedelta(seconds=int(slot)) for slot in slots],
        "step": steps.astype(np.int64),
        "step_time_s": times.gamma(20, 0.05, first_slot + count)[first_slot:].astype(np.float32),
        "tokens": np.full(count, 1024, np.int64),
        "loss": losses.normal(3, 0.1, first_slot + count)[first_slot:].astype(np.float32),
    }
    schema = arrow_schema(contract("steps"), segment=True)
    arrays = [
        pa.array(columns[column.name], column.type) if column.name in columns else pa.nulls(count, column.type)
        for column in schema
    ]
    return pa.table(arrays, schema=schema)


def phase_rows(count, *, rank, incarnation, run="r1", start=DAY):
    """Return rows of ``spans`` of some steps, one a second: a forward, longer on later ranks, and an all-reduce."""
    facts = []
    for step in range(count):
        begin = start + timedelta(seconds=step)
        forward = timedelta(milliseconds=100 + 20 * rank + step % 7)
        facts.append(("forward", "phase", step, begin, forward))
        facts.append(("all_reduce", "collective", step, begin + forward, timedelta(milliseconds=250) - forward))
    schema = arrow_schema(contract("spans"), segment=True)
    rows = [
        dict.fromkeys(schema.names)
        | {"run": run, "attempt": 0, "rank": rank, "incarnation": incarnation, "segment": 0, "slot": slot}
        | {"name": name, "kind": kind, "step": step, "ts": ts, "span_id": slot, "dp_rank": rank}
        | {"duration_ns": length // timedelta(microseconds=1) * 1000}
        for slot, (name, kind, step, ts, length) in enumerate(facts)
    ]
    return pa.Table.from_pylist(rows, schema=schema)


def put_segment(spool: Path, rows: pa.Table, table="steps", *, day="2026-03-01", **footer) -> Path:
    """Write rows as a segment into the spool; facts of the footer come from the first row unless given."""
    name, raw = segment_bytes(rows, table, **footer)
    path = spool / "segments" / day / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return path


def segment_bytes(rows: pa.Table, table="steps", **footer) -> tuple[str, bytes]:
    """Return a segment's path below its day's folder, and its bytes."""
    known = (rows.schema.metadata or {}).get(b"version")  # of an own table
    version = int(known) if known else contract(table).version
    first = rows.slice(0, 1).select(["run", "attempt", "rank", "incarnation", "segment"]).to_pylist()[0]
    said = SegmentFooter(table=table, contract_version=version, world_size=1, rows=rows.num_rows, **first)
    said = replace(said, **footer)
    sink = pa.BufferOutputStream()
    metadata = {**(rows.schema.metadata or {}), METADATA_KEY: said.to_json()}
    pq.write_table(rows.replace_schema_metadata(metadata), sink, compression="zstd", write_page_checksum=True)
    raw = sink.getvalue().to_pybytes()
    return f"{table}/{segment_name(raw, said)}", raw


def put_bytes(spool: Path, raw: bytes, said: SegmentFooter, table="steps", day="2026-03-01") -> Path:
    """Write bytes under the name that a footer and their digest give."""
    path = spool / "segments" / day / table / segment_name(raw, said)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return path


def segment_name(raw: bytes, said: SegmentFooter) -> str:
    """Return the name that a footer and the bytes' digest give."""
    digest = hashlib.sha256(raw).hexdigest()
    return str(SegmentName(said.run, said.attempt, said.rank, said.incarnation, said.segment, said.rows, digest))
