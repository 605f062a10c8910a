"""Rows of a training as its ranks record them, by the million; synthetic, seeded, for benchmarks and tests.

Segments go through the sealer's own Parquet writer, so their bytes are laid out as those of real ones.
"""

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from ranklake.capture.sealing.constants import constants_in
from ranklake.capture.sealing.segment_bytes import parquet_bytes
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.segments.segment import IDENTITY, SegmentFooter, SegmentName

START_US = int(datetime(2026, 3, 1, 6, tzinfo=UTC).timestamp() * 1e6)
LAYERS = 8
SPANS_A_STEP = 2 + 5 * LAYERS  # forward, backward, and of each layer: forward, backward, three collectives
SLOTS = {"spans": 65_536, "scalars": 131_072, "steps": 3_640, "gpu_samples": 28_800}  # of a full slot file
METRICS = 20


def incarnation_of(rank: int) -> int:
    """Return the number of a rank's process."""
    return int.from_bytes(hashlib.blake2b(f"{rank}".encode(), digest_size=8).digest(), "big") >> 1


def span_rows(rank: int, first: int, count: int, rng: np.random.Generator) -> dict[str, object]:
    """Return columns of ``spans``: of each step what its layers do, recorded when it ends, a step a second."""
    slot = np.arange(first, first + count)
    step, place = slot // SPANS_A_STEP, slot % SPANS_A_STEP
    layer, what = np.maximum(place - 2, 0) // 5, np.where(place < 2, place + 5, np.maximum(place - 2, 0) % 5)
    names = np.array(
        ["layer_forward", "layer_backward", "all_gather", "reduce_scatter", "all_reduce", "forward", "backward"]
    )
    kinds = np.array(["phase", "phase", "collective", "collective", "collective", "phase", "phase"])
    begins = (
        np.array([0.02, 0.35, 0.015, 0.36, 0.4, 0.01, 0.34])[what]
        + layer * np.array([0.04, 0.07, 0.04, 0.07, 0.07, 0, 0])[what]
    )
    lasts = np.array([0.03, 0.06, 0.004, 0.006, 0.002, 0.32, 0.6])[what] * rng.gamma(400, 1 / 400, count)
    start = START_US + ((step + begins) * 1e6).astype(np.int64) + rng.integers(0, 400, count)
    moved = np.array([0, 0, 26_214_400, 26_214_400, 4_194_304, 0, 0])[what]
    return {
        "ts": start,
        "name": pa.DictionaryArray.from_arrays(what.astype(np.int32), names),
        "kind": pa.DictionaryArray.from_arrays(what.astype(np.int32), kinds),
        "stream": pa.DictionaryArray.from_arrays((what % 5 > 1).astype(np.int32), ["MainThread", "nccl"]),
        "step": step,
        "duration_ns": (lasts * 1e9).astype(np.int64),
        "span_id": slot + (rank << 32),
        "parent_id": pa.array(slot - place + what % 2 + (rank << 32), pa.int64(), mask=place < 2),
        "bytes": pa.array(moved, pa.int64(), mask=moved == 0),
    }


def step_rows(rank: int, first: int, count: int, rng: np.random.Generator) -> dict[str, object]:
    """Return columns of ``steps``, a step a second."""
    del rank
    step = np.arange(first, first + count)
    whole = 0.95 + 0.01 * rng.gamma(4, 1, count)
    reserved = 68_719_476_736 + 2_097_152 * (step // 500 % 16)
    return {
        "ts": START_US + step * 1_000_000 + rng.integers(0, 5000, count),
        "step": step,
        "step_time_s": whole,
        "data_time_s": whole * rng.normal(0.02, 0.002, count),
        "forward_time_s": whole * rng.normal(0.3, 0.003, count),
        "backward_time_s": whole * rng.normal(0.6, 0.004, count),
        "optimizer_time_s": whole * rng.normal(0.05, 0.001, count),
        "collective_time_s": whole * rng.normal(0.1, 0.005, count),
        "tokens": np.full(count, 8192),
        "samples": np.full(count, 4),
        "loss": 2 + 8 * np.exp(-step / 3000) + rng.normal(0, 0.05, count),
        "grad_norm": rng.lognormal(0, 0.2, count),
        "lr": 3e-4 * np.minimum(step / 2000, 1),
        "memory_allocated_bytes": reserved - 512 * rng.integers(1000, 1100, count),
        "memory_reserved_bytes": reserved,
    }


def scalar_rows(rank: int, first: int, count: int, rng: np.random.Generator) -> dict[str, object]:
    """Return columns of ``scalars``: `METRICS` values a step that are logged together, metric by metric as sealed.

    Values have the noise of a float32, as those of a tensor have, and are stored as float64.
    """
    del rank
    steps = -(-count // METRICS)
    metric = np.repeat(np.arange(METRICS), steps)[:count]
    step = np.tile(np.arange(first // METRICS, first // METRICS + steps), METRICS)[:count]
    moments = START_US + step * 1_000_000 + np.tile(rng.integers(0, 5000, steps), METRICS)[:count]
    names = [f"train/value_{number:02}" for number in range(METRICS)]
    value = rng.lognormal(metric / 4, 0.1, count).astype(np.float32).astype(np.float64)
    return {
        "slot": (step - step[0] if count else step) * METRICS + metric,
        "ts": moments,
        "metric": pa.DictionaryArray.from_arrays(metric.astype(np.int32), names),
        "step": step,
        "value": value,
        "kind": pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), ["gauge"]),
    }


def gpu_rows(rank: int, first: int, count: int, rng: np.random.Generator) -> dict[str, object]:
    """Return columns of ``gpu_samples``: eight devices of a host, a tick a second, in the resolution of the driver."""
    slot = np.arange(first, first + count)
    tick, device = slot // 8, slot % 8
    device32 = device.astype(np.int32)

    def walk(step: float, least: float, most: float) -> np.ndarray:
        return np.clip(most - np.abs(rng.normal(0, step, count)), least, most)

    def text(form: str) -> pa.DictionaryArray:
        return pa.DictionaryArray.from_arrays(device32, [form.format(rank=rank, device=n) for n in range(8)])

    return {
        "ts": START_US + tick * 1_000_000 + rng.integers(0, 300) + device * 40,
        "host": text("node{rank:05}"),
        "node_rank": np.full(count, rank // 8),
        "source": text("nvml"),
        "interval_ns": 1_000_000_000 + rng.integers(-200, 200, count) * 1000,
        "device_index": device,
        "device_uuid": text("GPU-{rank:08x}-0000-0000-0000-00000000000{device}"),
        "device_name": text("NVIDIA H100 80GB HBM3"),
        "serial_number": text("165{rank:05}{device:05}"),
        "pci_bus_id": text("00000000:{device}B:00.0"),
        "driver_version": text("580.65.06"),
        "holder_run": text("bench"),
        "holder_attempt": np.zeros(count),
        "holder_rank": rank * 8 + device,
        "holder_count": np.ones(count),
        "gpu_utilization_ratio": np.round(walk(0.03, 0, 1), 2),
        "memory_utilization_ratio": np.round(walk(0.05, 0, 0.7), 2),
        "memory_used_bytes": 68_719_476_736 + 2_097_152 * (tick // 500 % 16 + device),
        "memory_free_bytes": 16_106_127_360 - 2_097_152 * (tick // 500 % 16 + device),
        "memory_total_bytes": np.full(count, 85_520_809_984),
        "sm_clock_hz": np.round(walk(15, 1000, 1980) / 15) * 15e6,
        "power_watts": np.round(walk(12, 90, 690), 3),
        "temperature_celsius": np.round(walk(1.5, 30, 66)),
        "memory_temperature_celsius": np.round(walk(1.5, 30, 78)),
    }


MAKERS: dict[str, Callable[[int, int, int, np.random.Generator], dict[str, object]]] = {
    "spans": span_rows,
    "steps": step_rows,
    "scalars": scalar_rows,
    "gpu_samples": gpu_rows,
}


def segment_rows(
    table: str, rank: int, segment: int, count: int, *, first: int | None = None, run: str = "bench"
) -> pa.Table:
    """Return the rows of one segment under the contract's segment schema; `first` is the first event's number."""
    schema = arrow_schema(contract(table), segment=True)
    rng = np.random.default_rng((rank, segment))
    made = MAKERS[table](rank, segment * count, count, rng)
    whose = {"attempt": 0, "rank": rank, "incarnation": incarnation_of(rank), "segment": segment}
    columns = {
        "run": pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), ["bench"]),
        **{name: np.full(count, value) for name, value in whose.items()},
        "slot": np.arange(count),
        **made,
    }
    arrays = []
    for field in schema:
        values = columns.get(field.name)
        array = pa.nulls(count, field.type) if values is None else pa.array(values)
        arrays.append(array.cast(field.type, safe=False))
    return pa.table(arrays, schema=schema)


def put(spool: Path, table: str, rows: pa.Table, *, day: str = "2026-03-01", rows_before: int = 0) -> Path:
    """Write rows of one segment into the spool as the sealer writes them; return the file's path."""
    first = rows.slice(0, 1).select(IDENTITY).to_pylist()[0]
    kept = rows.drop_columns(list(IDENTITY))
    footer = SegmentFooter(
        table=table,
        contract_version=contract(table).version,
        world_size=1,
        rows=rows.num_rows,
        rows_before=rows_before,
        constants=constants_in(kept, contract(table)),
        **first,
    )
    raw = parquet_bytes(kept, footer, times_repeat=table == "scalars")
    name = SegmentName(**first, rows=rows.num_rows, sha256=hashlib.sha256(raw).hexdigest())
    path = spool / "segments" / day / table / str(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return path


def fill(spool: Path, table: str, rows: int, *, a_segment: int = 0, ranks: int = 0, again: int = 50) -> int:
    """Fill a spool with segments of a table until it holds that many rows; return how many there are, repeats included.

    Parameters
    ----------
    a_segment
        Rows of a segment; default a full slot file.
    ranks
        How many ranks share the rows; default one a million rows.
    again
        Every how many-th slot file was sealed twice, the first time cut short; 0 for none.
    """
    a_segment = a_segment or SLOTS[table]
    ranks = ranks or max(1, rows // 1_000_000)
    total = number = 0
    while total < rows:
        rank, segment = number % ranks, number // ranks
        whole = segment_rows(table, rank, segment, min(a_segment, rows - total))
        put(spool, table, whole, rows_before=segment * a_segment)
        total += whole.num_rows
        if again and number % again == again // 2 and whole.num_rows > 1 and table != "scalars":
            cut = whole.slice(0, whole.num_rows // 2)
            put(spool, table, cut, rows_before=segment * a_segment)
            total += cut.num_rows
        number += 1
    return total
