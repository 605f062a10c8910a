"""The cluster page: nodes by hour, low ones first, numbers equal to their SQL, small however many nodes there are."""

from datetime import timedelta
from pathlib import Path

import altair as alt
import numpy as np
import pyarrow as pa
import pytest
from page_read import Read, compared
from rollup_inputs import NOON, append

from ranklake.cli import run as command
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.fleet.cluster import HEAT_ROWS, HOURS, cluster_state
from ranklake.lake.storage.store import Lake
from ranklake.views.html import site as publishing
from ranklake.views.html.cluster_pages import section
from ranklake.views.html.shell import render

MOST_BYTES = 2_000_000


def samples(nodes, hours):
    """Return rows of ``gpu_hourly``: 8 devices a node; node 0 is held and idle, the others busier by their number."""
    of = np.arange(nodes * 8 * hours)
    device, hour = of // hours, of % hours
    node = device // 8
    busy = np.where(node == 0, 0.0, 3600 * (0.2 + 0.7 * node / nodes))
    start = np.datetime64((NOON - timedelta(hours=hours - 1)).replace(tzinfo=None), "us")
    moments = start + hour * np.timedelta64(1, "h")
    columns = {
        "hour": moments,
        "date": moments.astype("datetime64[D]"),
        "host": [f"pc-ada-{number}" for number in node],
        "device_uuid": [f"GPU-{number:06d}" for number in device],
        "sample_count": np.full(len(of), 3600),
        "observed_s": np.full(len(of), 3600.0),
        "busy_observed_s": np.full(len(of), 3600.0),
        "allocated_s": np.full(len(of), 3600.0),
        "idle_allocated_s": np.where(node == 0, 3600.0, 0.0),
        "energy_observed_s": np.zeros(len(of)),
        "busy_s": busy,
    }
    schema = arrow_schema(contract("gpu_hourly"))
    arrays = [
        pa.array(columns[field.name]).cast(field.type) if field.name in columns else pa.nulls(len(of), field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake with three nodes of a few hours and a queue."""
    lake = Lake.create(str(tmp_path_factory.mktemp("cluster") / "lake"))
    append(lake, "gpu_hourly", samples(3, 5))
    append(lake, "cluster_hourly", [
        {"hour": NOON - timedelta(hours=back), "scope": scope, "cluster": "c", "scope_name": name, "pool": pool,
         "gpu_total_s": 100.0, "gpu_delivered_s": 60.0, "queue_job_s": 7200.0 * (back + 1), "queue_depth_max": 5 + back,
         "date": NOON.date()}
        for back in range(3) for scope, name, pool in (("cluster", "c", None), ("pool", "<b>p", "<b>p"))
    ])  # fmt: skip
    return lake


def test_low_nodes_come_first_and_numbers_are_those_of_their_sql(lake):
    """The idle node is on top, named by a device, with its hours; queue and allocation by hour; no host is shown."""
    found = cluster_state(lake)
    first, *others = found.nodes.rows
    assert (first["first_device"], first["utilization_ratio"], first["low_hours"]) == ("GPU-000000", 0.0, 5)
    assert [row["low_hours"] for row in others] == [0, 0]
    assert [(row["tenth"], row["nodes"]) for row in found.spread.rows] == [(0, 1), (4, 1), (6, 1)]
    assert [row["queue_depth"] for row in found.hours.rows] == [6.0, 4.0, 2.0]
    (page,) = section(found).pages
    text = render(page).decode()
    assert compared(lake, text) > 30
    assert "pc-ada" not in text
    assert "<b>p" not in text
    specs = Read(text).specs
    assert len(specs) == 4
    for spec in specs:
        alt.Chart.from_dict(spec)
    heat = specs[0]["data"]["values"]
    assert {one["row"] for one in heat} == {0, 1, 2}
    assert {one["used"] for one in heat if one["row"] == 0} == {0.0}
    assert "1 node held and hardly used" in section(found).headline


@pytest.mark.slow
def test_a_page_of_4096_gpus_is_small_and_its_rows_are_groups(tmp_path):
    """512 nodes by two days: 64 rows of eight nodes each, the least utilized on top, in less than 2 MB."""
    lake = Lake.create(str(tmp_path / "lake"))
    append(lake, "gpu_hourly", samples(512, HOURS))
    found = cluster_state(lake)
    assert {row["nodes"] for row in found.heat.rows} == {512 // HEAT_ROWS}
    assert len(found.heat.rows) == HEAT_ROWS * HOURS
    assert found.heat.rows[0]["first_device"] == "GPU-000000"
    (page,) = section(found).pages
    assert len(render(page)) < MOST_BYTES


def test_an_empty_lake_and_one_without_devices_say_what_is_unknown(tmp_path, monkeypatch, capsys):
    """Nothing at all: one sentence. A scheduler without samples: its queue, and why utilization is unknown."""
    monkeypatch.setattr(publishing, "library", lambda: b"")
    lake = Lake.create(str(tmp_path / "lake"))
    assert command(["report", "cluster", "--out", str(tmp_path / "out"), "--lake", lake.uri]) == 0
    assert "Nothing to tell yet" in capsys.readouterr().out
    append(lake, "cluster_hourly", [{"hour": NOON, "scope": "cluster", "cluster": "c", "scope_name": "c",
                                     "gpu_delivered_s": 1.0, "gpu_total_s": 2.0, "date": NOON.date()}])  # fmt: skip
    assert command(["report", "cluster", "--out", str(tmp_path / "out"), "--lake", lake.uri]) == 0
    text = (Path(tmp_path) / "out/cluster/index.html").read_text()
    assert "50.0 % allocated" in text
    assert "no device was sampled in these hours" in text
    compared(lake, text)
