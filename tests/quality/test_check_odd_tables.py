"""Tables that have next to nothing in them: every check of every contract comes to a verdict, and none is errored."""

from datetime import UTC, date, datetime

import pyarrow as pa
import pytest
from segments import step_rows

from ranklake.lake.contracts.arrow import arrow_schema, conform
from ranklake.lake.contracts.load import contract, load_contracts
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.commit import replace_partitions
from ranklake.lake.tables.read import read
from ranklake.quality.check import run_checks
from ranklake.quality.suite import KINDS

DAY = date(2026, 3, 1)
NAMES = sorted(name for name, one in load_contracts().items() if one.kind in KINDS)
VALUES = {
    "string": "a", "bool": False, "int32": 1, "int64": 1, "float32": 0.5, "float64": 0.5, "decimal": 1,
    "timestamp": datetime(2026, 3, 1, 12, tzinfo=UTC), "date": DAY, "int64_list": [1],
}  # fmt: skip


def rows_of(name, count, *, only_required):
    """Return equal rows of a table; with values in columns that must have one alone, or in all."""
    known = contract(name)
    columns = {
        one.name: [VALUES[one.type] if one.required or not only_required or one.name == "date" else None] * count
        for one in known.columns
    }
    return pa.table([pa.array(columns[one.name], one.type) for one in arrow_schema(known)], schema=arrow_schema(known))


@pytest.fixture(scope="module", params=["one row of what is required", "one full row", "three rows without a value"])
def told(request, tmp_path_factory):
    """Check a lake that has each table with such a date; give the results by table."""
    lake = Lake.create(str(tmp_path_factory.mktemp("odd") / "lake"))
    count = 3 if request.param.startswith("three") else 1
    for name in NAMES:
        rows = rows_of(name, count, only_required="full" not in request.param)
        replace_partitions(lake.tables, contract(name), rows, [DAY])
    found = {}
    for one in run_checks(lake).results:
        found.setdefault(one.table, []).append(one)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("table", NAMES)
def test_nothing_is_errored(told, table):
    """Each check passes, fails or has nothing to judge."""
    assert told[table]
    assert [(one.check_id, one.message) for one in told[table] if one.status == "errored"] == []
    assert all(one.rows_failed <= one.rows_checked for one in told[table] if one.rows_checked is not None)


def test_a_step_beyond_all_counts_ends_no_check(tmp_path):
    """Two ranks of a last step of 2^63 - 1 imply more rows than 64 bits count: told, not raised, again and again."""
    lake = Lake.create(str(tmp_path / "lake"))
    parts = [step_rows(20, rank=rank, incarnation=7 + rank) for rank in range(2)]
    for rank, part in enumerate(parts):
        steps = pa.array([*part["step"].to_pylist()[:-1], 2**63 - 1], pa.int64())
        parts[rank] = part.set_column(part.schema.get_field_index("step"), part.schema.field("step"), steps)
    rows = conform(pa.concat_tables(parts).append_column("date", pa.array([DAY] * 40, pa.date32())), contract("steps"))
    replace_partitions(lake.tables, contract("steps"), rows, [DAY])
    results = [one for _ in range(2) for one in run_checks(lake, ["steps"], again=True).results]
    assert not [one for one in results if one.status == "errored"]
    assert any(one.rows_checked == 2**63 - 1 for one in results)


def test_a_date_without_rows_is_no_partition(tmp_path):
    """A table whose rows are all gone has nothing to check, and is no failure."""
    lake = Lake.create(str(tmp_path / "lake"))
    replace_partitions(lake.tables, contract("steps"), rows_of("steps", 1, only_required=True), [DAY])
    replace_partitions(lake.tables, contract("steps"), rows_of("steps", 0, only_required=True), [DAY])
    assert read(lake.tables, contract("steps")).num_rows == 0
    report = run_checks(lake)
    assert (report.passed, report.results) == (True, ())
