"""A contract that changed: the tables follow it, their readers see it, and no row is lost or twice."""

from datetime import UTC, date, datetime
from decimal import Decimal

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from bringing import bring
from deltalake import DeltaTable
from segments import put_segment, step_rows

from ranklake.lake.contracts.errors import ContractError
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.maintenance.compaction import merge_small
from ranklake.lake.ingest.maintenance.run import upkeep
from ranklake.lake.plans.plan import last_finished, read_plan
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.store import Store
from ranklake.lake.tables.commit import LostRaceError, swap
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.table_schema import FOLLOWS, UnmigratedTableError, follow, version_of
from ranklake.lake.tables.tables import commit_info, delta_table, ensure_table


class Distant(Store):
    """A store that is read as one on an object store is: through its own file system."""

    is_local = False


def log_of(lake, table):
    """Return the handle of a table, the names of its columns, and its contract's version, as its log says."""
    handle = delta_table(lake.store, table)
    return handle, [field.name for field in handle.schema().fields], version_of(handle)


@pytest.mark.leaky("polars keeps its thread pool")
@pytest.mark.parametrize("by", ["ingest", "upkeep"])
@pytest.mark.slow
def test_other_readers_see_an_added_column(lake, spool, changed, by):
    """After the next ingest, or upkeep, Polars, DuckDB and DataFusion see a column that a new version added."""
    put_segment(spool, step_rows(10))
    bring(lake, spool)
    before = log_of(lake, "steps")[0].version()
    changed.add("steps", id=900, name="samples_skipped", type="int64", unit="{sample}")
    if by == "ingest":
        rows = step_rows(4, segment=1)
        put_segment(spool, rows.set_column(*_filled(rows, "samples_skipped", [1, 2, 3, 4])), rows_before=10)
        bring(lake, spool)
    else:
        upkeep(lake, InProcess())
    handle, names, version = log_of(lake, "steps")
    assert (names[-1], version) == ("samples_skipped", 2)
    assert "samples_skipped" in handle.metadata().configuration["delta.dataSkippingStatsColumns"].split(",")
    assert handle.version() == before + (4 if by == "ingest" else 3)  # columns, properties, version; and the rows
    expected = 10 if by == "ingest" else None
    uri = lake.store.table_uri("steps")
    assert pl.read_delta(uri)["samples_skipped"].sum() == (expected or 0)
    seen = DeltaTable(uri).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        assert connection.sql("SELECT sum(samples_skipped) FROM seen").fetchall() == [(expected,)]
    assert query(lake, "SELECT sum(samples_skipped) AS n FROM steps")["n"].to_pylist() == [expected]
    del seen


def test_following_names_no_file(lake, spool, changed):
    """Whoever comes second to follow a contract finds it done; a writer that read the table before loses its race."""
    put_segment(spool, step_rows(10))
    bring(lake, spool)
    slow, writer = delta_table(lake.store, "steps"), delta_table(lake.store, "steps")
    changed.add("steps", id=900, name="samples_skipped", type="int64", unit="{sample}")
    ensure_table(lake.tables, contract("steps"))
    followed = delta_table(lake.store, "steps").version()
    versions = range(slow.version() + 1, followed + 1)
    assert [commit_info(lake.store, "steps", version)[FOLLOWS] for version in versions] == ["2"] * 3
    assert files(delta_table(lake.store, "steps"))["path"].to_pylist() == files(slow)["path"].to_pylist()
    assert follow(slow, contract("steps")) is False  # another was faster
    with pytest.raises(LostRaceError):
        swap(writer, 99)
    assert log_of(lake, "steps")[0].version() == followed
    assert upkeep(lake, InProcess()).followed == []


def test_upkeep_foretells_what_it_follows(lake, spool, changed):
    """A dry run names the table, and changes nothing; columns of an unraised version are followed, too."""
    put_segment(spool, step_rows(10))
    bring(lake, spool)
    column = {"id": 900, "name": "late", "type": "string", "class": "operational", "doc": "Later."}
    changed.edit("steps", lambda facts: facts["columns"].append(column))
    before = delta_table(lake.store, "steps").version()
    assert upkeep(lake, InProcess(), dry_run=True).followed == ["steps"]
    assert delta_table(lake.store, "steps").version() == before
    assert upkeep(lake, InProcess()).followed == ["steps"]
    assert log_of(lake, "steps")[1:] == ([*contract("steps").names], 1)
    changed.earlier()  # a driver without the column leaves it there
    put_segment(spool, step_rows(4, segment=1), rows_before=10)
    bring(lake, spool)
    assert log_of(lake, "steps")[1][-1] == "late"


def _first(facts, name):
    return next(column for column in facts["columns"] if column["name"] == name)


def _retire(facts):
    column = _first(facts, "samples")
    facts["columns"].remove(column)
    facts["retired"] = [{"id": column["id"], "name": "samples", "type": column["type"], "retired_in": 2, "reason": "-"}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("samples is renamed examples", lambda facts: _first(facts, "samples").update(name="examples")),
        ("loss changes its type", lambda facts: _first(facts, "loss").update(type="float64")),
        ("tokens changes its unit", lambda facts: _first(facts, "tokens").update(unit="{sample}")),
        ("samples is dropped", _retire),
        (
            "owed is required, and stored rows lack it",
            lambda facts: facts["columns"].append(
                {"id": 900, "name": "owed", "type": "bool", "class": "operational", "doc": "-", "required": True}
            ),
        ),
    ],
)
def test_what_stored_rows_cannot_follow_is_refused_before_anything_is_written(lake, spool, changed, what, change):
    """A rename, drop, other type or unit, or a required column waits for its migration; no plan is left behind."""
    put_segment(spool, step_rows(10))
    bring(lake, spool)
    put_segment(spool, step_rows(10, segment=1), rows_before=10)
    changed.edit("steps", lambda facts: (change(facts), facts.update(version=2)))
    before = delta_table(lake.store, "steps").version()
    with pytest.raises(UnmigratedTableError, match=what):
        bring(lake, spool)
    with pytest.raises(UnmigratedTableError):
        merge_small(lake, InProcess(), thorough=True)
    assert (delta_table(lake.store, "steps").version(), last_finished(lake.tables)) == (before, 1)
    assert read_plan(lake.store, 2) is None
    changed.earlier()
    assert bring(lake, spool).rows_stored == 10


def _filled(rows, name, values):
    place = rows.schema.get_field_index(name)
    field = rows.schema.field(place)
    return place, field, pa.array(values, field.type)


DEFAULTS = {
    "string": ("fp8", "fp8"),
    "bool": (True, True),
    "int32": (-3, -3),
    "int64": (2**40, 2**40),
    "float32": (0.5, 0.5),
    "float64": (1, 1.0),
    "decimal": ("1.25", Decimal("1.25")),
    "timestamp": ("2026-01-01T00:00:00Z", datetime(2026, 1, 1, tzinfo=UTC)),
    "date": ("2026-01-01", date(2026, 1, 1)),
}


@pytest.mark.slow
def test_a_default_stands_for_what_is_missing(lake, spool, changed):
    """Old rows read as the default, new rows without a value are written as it, and merging them changes neither."""
    put_segment(spool, step_rows(3))
    bring(lake, spool)
    for place, (type_, (default, _)) in enumerate(DEFAULTS.items()):
        changed.add("steps", id=900 + place, name=f"as_{type_}", type=type_, default=default)
    names = [f"as_{type_}" for type_ in DEFAULTS]
    expected = [value for _, value in DEFAULTS.values()]
    rows = step_rows(3, segment=1)
    put_segment(spool, rows.set_column(*_filled(rows, "as_int32", [7, None, 8])), rows_before=3)
    bring(lake, spool, merge=False)
    other = [[value if name != "as_int32" else 7 for name, value in zip(names, expected, strict=True)]]
    text = f"SELECT {', '.join(names)} FROM steps"
    for merged in (False, True):
        if merged:
            assert len(upkeep(lake, InProcess()).plans) == 1
        found = read(lake.tables, contract("steps"), ["slot", "segment", *names]).sort_by(
            [("segment", "ascending"), ("slot", "ascending")]
        )
        assert found["as_int32"].to_pylist() == [-3, -3, -3, 7, -3, 8]
        assert [list(row.values())[2:] for row in found.to_pylist()][:3] == [expected] * 3
        for one in (lake, Lake.of(Distant(lake.uri, fs=lake.fs, root=lake.store.root))):
            row = query(one, f"{text} WHERE segment = 0 LIMIT 1").to_pylist()
            assert row == [dict(zip(names, expected, strict=True))]
            assert [list(row.values()) for row in query(one, f"{text} WHERE as_int32 = 7").to_pylist()] == other
            assert query(one, f"{text} WHERE as_string = 'fp8' AND as_int32 = -3").num_rows == 4
            assert query(one, f"{text} WHERE as_string IS NULL").num_rows == 0
    stored = DeltaTable(lake.store.table_uri("steps")).to_pyarrow_dataset().to_table(columns=names)
    assert [stored[name].null_count for name in names] == [0] * len(names)  # other readers see it after a rewrite


@pytest.mark.parametrize(
    ("type_", "default"),
    [
        *(("string", 3), ("bool", 1), ("int32", 2**31), ("int64", 0.5), ("int64", True), ("float32", 1e39)),
        *(("float64", "x"), ("float64", float("nan")), ("decimal", "x"), ("decimal", 0.1), ("decimal", "0.0000000001")),
        *(("timestamp", "2026-01-01T00:00:00"), ("timestamp", "now"), ("date", "2026-13-01"), ("int64_list", 1)),
    ],
)
def test_a_default_of_the_wrong_type_is_refused(changed, type_, default):
    """The error names the file, the line, the column and the type."""
    changed.add("steps", id=900, name="x", type=type_, default=default)
    with pytest.raises(ContractError, match=rf"steps.yaml:\d+: column 'x': .*{type_}.*"):
        contract("steps")
