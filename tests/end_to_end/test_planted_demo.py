"""Faults that are planted in the record of a real demo: each is found where it is, and the clean record gives none."""

import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from planted import FAULTS, Fault, again, plus, without

from ranklake.lake.contracts.load import contract
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.commit import replace_partitions
from ranklake.lake.tables.read import read
from ranklake.quality.check import run_checks

pytestmark = pytest.mark.slow

TABLES = ("steps", "spans", "scalars", "host_samples", "runs", "datasets", "ranks")
DAY_US = 86_400_000_000
PAST = 200
"""Days ago that the first date lies: rows of the future are a fault of their own."""
WANTS_MORE = frozenset(
    {
        *("a rank is missing", "a rank stops half-way", "a clock runs ahead", "durations in us on one rank"),
        *("memory in MiB", "memory in GiB on one rank", "loss stands still", "spans twice"),
        *("durations in ms on one rank", "a counter falls", "a password in a metric", "a host has a gap"),
        *(
            "half of a host's samples",
            "all hosts are silent",
            "uptime falls",
            "CPU time falls",
            "a clock is off its source",
        ),
        *("lock files differ", "images differ", "commits differ", "a rank has another image"),
        *("a rank has another driver", "a rank has another NCCL", "files of a dataset differ"),
    }
)
"""Faults that want what a demo of two ranks on one host without a GPU has not: ranks 2 and 3, hosts, memory of devices,
minutes of samples, several rows of `runs`; those that `OURS` plants otherwise are among them."""
OURS = {
    "rank 1 is missing": Fault("steps", "steps_of_all_ranks", "rank,step", "warning", without(rank=1)),
    "rank 1 stops half-way": Fault(
        "steps", "steps_of_all_ranks", "rank,step", "warning", without(rank=1, step=(30, 99))
    ),
    "rank 1 runs ahead": Fault("steps", "step_clocks", "ts,rank,step", "warning", plus("ts", 300_000_000, rank=1)),
    "many spans twice": Fault("spans", "spans_once", "run,attempt,rank,name,ts,duration_ns", "warning", again(400)),
}
PLANTED = {**{name: one for name, one in FAULTS.items() if one.table in TABLES and name not in WANTS_MORE}, **OURS}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Give the lake of a demo."""
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "ranklake", "demo", "--dir", str(folder), "--steps", "60"]
    environment = {**os.environ, "RANKLAKE_CAPTURE_SAMPLERS": "auto"}  # which other tests go without
    done = subprocess.run(command, capture_output=True, text=True, timeout=840, check=False, env=environment)
    assert done.returncode == 0, done.stderr + done.stdout
    return Lake.open(str(folder / "lake"))


def moved(rows, days):
    """Return rows of another date, of a run and processes of their own."""
    for index, field in enumerate(rows.schema):
        column = rows.column(index)
        if field.name == "run":
            column = pc.binary_join_element_wise(column, str(abs(days)), "-")
        elif field.name == "incarnation":
            column = pc.add(column, days)
        elif pa.types.is_date(field.type):
            column = pc.add(column.cast(pa.int32()), pa.scalar(days, pa.int32())).cast(field.type)
        elif pa.types.is_timestamp(field.type):
            column = pc.add(column.cast(pa.int64()), days * DAY_US).cast(field.type)
        rows = rows.set_column(index, field, column)
    return rows


@pytest.fixture(scope="module")
def found(demo, tmp_path_factory):
    """Check a lake of the demo's record, again on many dates, some with a fault; give what failed, and the dates."""
    lake = Lake.create(str(tmp_path_factory.mktemp("planted") / "lake"))
    days = {table: [name for name, one in PLANTED.items() if one.table == table] for table in TABLES}
    last = max(9 + 3 * len(names) for names in days.values())
    at, quiet = {}, {}
    for table in TABLES:
        rows = read(demo.tables, contract(table))
        first = pc.min(rows["date"]).as_py()
        rows = rows.filter(pc.equal(rows["date"], first))  # of a demo that went on after midnight
        places = {9 + 3 * number: name for number, name in enumerate(days[table])}
        every = range(last if table == "runs" else 9 + 3 * max(1, len(places)))
        parts = [moved(rows, day - PAST) for day in every]
        dates = [part["date"][0].as_py() for part in parts]
        for day, name in places.items():
            parts[day] = PLANTED[name].make(parts[day])
            at[name] = dates[day]
        quiet[table] = [date for day, date in enumerate(dates) if day not in places]
        replace_partitions(lake.tables, contract(table), pa.concat_tables(parts), dates)
    by_place = {}
    for result in run_checks(lake, TABLES).unsound:
        by_place.setdefault((result.table, result.partition_date), []).append(result)
    return by_place, at, quiet


def test_the_demo_itself_gives_nothing_above_info(demo):
    """All that it recorded and all that was rolled up from it is sound, to every check."""
    told = [one for one in run_checks(demo, again=True).unsound if one.severity != "info" or one.status == "errored"]
    assert [(one.table, one.check_id, one.severity, one.observed) for one in told] == []


@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_planted_in_a_demo_is_found(found, name):
    """It is told at its table, date and column, by the check and with the severity that are due."""
    by_place, at, _ = found
    fault = PLANTED[name]
    results = by_place.get((fault.table, at[name]), [])
    assert (fault.check, fault.column, fault.severity, "failed") in {
        (one.check_id, one.column, one.severity, one.status) for one in results
    }
    assert "errored" not in {one.status for one in results}


@pytest.mark.parametrize("table", TABLES)
def test_dates_of_the_demo_without_a_fault_are_sound(found, table):
    """On them nothing is told that is worse than info."""
    by_place, _, quiet = found
    told = [
        (one.partition_date, one.check_id, one.severity, one.status, one.observed)
        for day in quiet[table]
        for one in by_place.get((table, day), [])
        if one.severity != "info" or one.status == "errored"
    ]
    assert told == []


def test_a_demo_has_kinds_enough():
    """Faults of seven tables are planted, some as they are planted in made-up rows."""
    assert {one.table for one in PLANTED.values()} == set(TABLES)
    assert len(PLANTED) >= 25
