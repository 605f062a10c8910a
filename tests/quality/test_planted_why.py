"""Faults that only some hosts, ranks, versions, devices, hours or steps have: what is to blame is named."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from planted import FIRST, RANKS, becomes, put, run_of, sound

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.commit import replace_partitions
from ranklake.quality.check import run_checks
from ranklake.quality.why.explain import explain

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Planted:
    """A fault in some rows of a table, the check that fails, and the facet and value that they have in common."""

    table: str
    check: str
    make: Callable[[pa.Table], pa.Table]
    facet: str
    value: str


def in_hour(name, value, hour):
    """Return a fault of the rows of one hour of the day, in a table whose rows are spread over the day."""

    def fault(rows):
        hours = pa.array((rows["ts"].cast(pa.int64()).to_numpy() // 3_600_000_000 % 24) == hour)
        return put(rows, name, value, pa.chunked_array([hours]))

    return fault


def impossible_perplexity(rows):
    """Have the losses be perplexities below 1, which none is."""
    losses = becomes("value", 0.5, metric="train/loss")(rows)
    return becomes("metric", "eval/perplexity", metric="train/loss")(losses)


CAUSES = {
    "a rank": Planted("steps", "tokens_not_negative", becomes("tokens", -1, rank=2), "rank", "2"),
    "steps from 20 on": Planted(
        "steps", "tokens_not_negative", becomes("tokens", -1, step=(20, 40)), "step", "20 to 39"
    ),
    "ranks of a driver": Planted(
        "steps", "tokens_not_negative", becomes("tokens", -1, rank=(2, 4)), "driver_version", "535"
    ),
    "a kind of span": Planted(
        "spans", "duration_not_negative", becomes("duration_ns", -1, kind="collective"), "kind", "collective"
    ),
    "a device": Planted(
        "gpu_samples",
        "gpu_utilization_range",
        becomes("gpu_utilization_ratio", 1.5, device_index=3),
        "device_index",
        "3",
    ),
    "a rank of the hosts": Planted(
        "host_samples", "cpu_utilization_range", becomes("cpu_utilization_ratio", -0.5, rank=1), "rank", "1"
    ),
    "a pool": Planted("pools", "allocated_within_total", becomes("gpu_allocated", 5000.0, pool="vc4"), "pool", "vc4"),
    "an hour": Planted(
        "pools", "allocated_within_total", in_hour("gpu_allocated", 5000.0, 9), "hour", "09:00 to 10:00"
    ),
    "a kind of metric": Planted("scalars", "metric:value", impossible_perplexity, "kind", "gauge"),
}


def ranks_of(day):
    """Return who recorded: of four ranks two have an older driver."""
    schema = arrow_schema(contract("ranks"))
    whose = {"run": run_of(day), "attempt": 0, "segment": 0, "slot": 0, "date": day}
    when = sound("runs", day)["ts"][0].as_py()
    rows = [
        {**whose, "rank": rank, "incarnation": rank, "ts": when, "driver_version": "550" if rank < 2 else "535",
         "python_version": "3.11.9"}
        for rank in range(RANKS)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=schema)


@pytest.mark.parametrize("name", CAUSES)
def test_what_is_to_blame_is_named(name, tmp_path):
    """The failing rows are those that were spoilt, and the best explanation is what they were chosen by, or as good."""
    planted = CAUSES[name]
    lake = Lake.create(str(tmp_path / "lake"))
    replace_partitions(lake.tables, contract("runs"), sound("runs", FIRST), [FIRST])
    replace_partitions(lake.tables, contract("ranks"), ranks_of(FIRST), [FIRST])
    rows = planted.make(sound(planted.table, FIRST))
    before = sound(planted.table, FIRST)
    spoilt = int(np.sum([a != b for a, b in zip(rows.to_pylist(), before.to_pylist(), strict=True)]))
    replace_partitions(lake.tables, contract(planted.table), rows, [FIRST])
    run_checks(lake)
    found = list(explain(lake, [planted.table], check_id=planted.check))
    assert len(found) == 1, [one.check_id for one in explain(lake, [planted.table])]
    (told,) = found
    assert told.failed == spoilt
    causes = [(one.facet, one.value) for one in (told.best, *told.alike) if one is not None]
    assert (planted.facet, planted.value) in causes
    assert told.best.failed == spoilt
    assert told.best.rest_failed == 0
