"""The cluster page: nodes by hour, low ones first, numbers equal to their SQL, small however many nodes there are."""

from datetime import timedelta
from pathlib import Path

import altair as alt
import pytest
from cluster_hours import device_hours
from page_read import Read, compared
from rollup_inputs import NOON, append

from ranklake.cli import run as command
from ranklake.insight.overview import fleet
from ranklake.insight.overview.fleet import HEAT_ROWS, HOURS, cluster_state
from ranklake.lake.store.lake import Lake
from ranklake.views.html import site as publishing
from ranklake.views.html.cluster_pages import section
from ranklake.views.html.shell import render

MOST_BYTES = 2_000_000


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake with three nodes of a few hours and a queue."""
    lake = Lake.create(str(tmp_path_factory.mktemp("cluster") / "lake"))
    append(lake, "gpu_hourly", device_hours(3, 5))
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
    heat, *specs = Read(text).specs
    assert len(specs) == 3
    for spec in specs:
        alt.Chart.from_dict(spec)
    assert (heat["rows"], len(heat["columns"])) == (["GPU-000000", "GPU-000008", "GPU-000016"], HOURS)
    hours = [row["hour"] for row in found.hours.rows]
    assert heat["columns"][-len(hours) :] == [f"{hour:%b %d, %H:%M}" for hour in hours]
    of_sql = {(row["first_device"], f"{row['hour']:%b %d, %H:%M}"): row for row in found.heat.rows}
    cells = [(name, hour) for name in heat["rows"] for hour in heat["columns"]]
    for cell, value in zip(cells, heat["values"], strict=True):
        assert value == (round(1000 * of_sql[cell]["utilization_ratio"]) if cell in of_sql else None)
    assert heat["values"].count(None) == 3 * (HOURS - 5)
    assert "1 node held and hardly used" in section(found).headline


@pytest.mark.slow
def test_a_page_of_4096_gpus_is_small_and_draws_every_node(tmp_path):
    """512 nodes by two days: a row a node, the least utilized on top, in less than 2 MB."""
    lake = Lake.create(str(tmp_path / "lake"))
    append(lake, "gpu_hourly", device_hours(512, HOURS))
    found = cluster_state(lake)
    assert {row["nodes"] for row in found.heat.rows} == {1}
    assert len(found.heat.rows) == HEAT_ROWS * HOURS
    assert found.heat.rows[0]["first_device"] == "GPU-000000"
    (page,) = section(found).pages
    assert len(render(page)) < MOST_BYTES


def test_more_nodes_than_rows_of_a_screen_share_rows(tmp_path, monkeypatch):
    """Of six nodes on two rows each row is three that are utilized alike, and says so."""
    monkeypatch.setattr(fleet, "HEAT_ROWS", 2)
    lake = Lake.create(str(tmp_path / "lake"))
    append(lake, "gpu_hourly", device_hours(6, 3))
    (page,) = section(cluster_state(lake)).pages
    text = render(page).decode()
    (heat, *_) = Read(text).specs
    assert (heat["rows"], heat["members"]) == (["GPU-000000", "GPU-000024"], [3, 3])
    assert "A row is several nodes that are utilized alike." in text
    assert compared(lake, text) > 10


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
