"""A contract that changed: the tables follow it, their readers see it, and no row is lost or twice."""

import duckdb
import polars as pl
import pytest
from bringing import bring
from changed_contracts import ChangedContracts
from deltalake import DeltaTable
from segments import put_segment, step_rows

from ranklake.lake.contracts.load import contract
from ranklake.lake.delta.commit import LostRaceError, files, swap
from ranklake.lake.delta.table_schema import CONTRACT_VERSION, UnmigratedTableError, follow
from ranklake.lake.delta.tables import commit_info, delta_table, ensure_table
from ranklake.lake.maintenance.run import upkeep
from ranklake.lake.plans.plan import last_finished, read_plan
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.sql import query


@pytest.fixture
def changed(tmp_path, monkeypatch):
    """Return contracts that a test may edit; those of today are back when it ends."""
    contracts = ChangedContracts(tmp_path / "contracts", monkeypatch)
    yield contracts
    contracts.earlier()


def log_of(lake, table):
    """Return the handle of a table, the names of its columns, and its contract's version, as its log says."""
    handle = delta_table(lake, table)
    version = int(handle.metadata().configuration[CONTRACT_VERSION])
    return handle, [field.name for field in handle.schema().fields], version


@pytest.mark.leaky("polars keeps its thread pool")
@pytest.mark.parametrize("by", ["ingest", "upkeep"])
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
    assert handle.version() == before + (2 if by == "ingest" else 1)  # the change, and the rows
    expected = 10 if by == "ingest" else None
    uri = lake.table_uri("steps")
    assert pl.read_delta(uri)["samples_skipped"].sum() == (expected or 0)
    seen = DeltaTable(uri).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        assert connection.sql("SELECT sum(samples_skipped) FROM seen").fetchall() == [(expected,)]
    assert query(lake, "SELECT sum(samples_skipped) AS n FROM steps")["n"].to_pylist() == [expected]
    del seen


def test_following_is_one_commit_that_names_no_file(lake, spool, changed):
    """Whoever comes second to follow a contract finds it done; a writer that read the table before loses its race."""
    put_segment(spool, step_rows(10))
    bring(lake, spool)
    slow, writer = delta_table(lake, "steps"), delta_table(lake, "steps")
    changed.add("steps", id=900, name="samples_skipped", type="int64", unit="{sample}")
    ensure_table(lake, contract("steps"))
    info = commit_info(lake, "steps", slow.version() + 1)
    assert (info["operation"], info["ranklake.contractVersion"]) == ("FOLLOW CONTRACT", "2")
    assert files(delta_table(lake, "steps"))["path"].to_pylist() == files(slow)["path"].to_pylist()
    assert follow(lake, slow, contract("steps")) is False  # another was faster
    with pytest.raises(LostRaceError):
        swap(writer, 99)
    assert log_of(lake, "steps")[0].version() == slow.version() + 1
    assert upkeep(lake, InProcess()).followed == []


def test_upkeep_foretells_what_it_follows(lake, spool, changed):
    """A dry run names the table, and changes nothing; columns of an unraised version are followed, too."""
    put_segment(spool, step_rows(10))
    bring(lake, spool)
    column = {"id": 900, "name": "late", "type": "string", "class": "operational", "doc": "Later."}
    changed.edit("steps", lambda facts: facts["columns"].append(column))
    before = delta_table(lake, "steps").version()
    assert upkeep(lake, InProcess(), dry_run=True).followed == ["steps"]
    assert delta_table(lake, "steps").version() == before
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
    before = delta_table(lake, "steps").version()
    for work in (lambda: bring(lake, spool), lambda: upkeep(lake, InProcess())):
        with pytest.raises(UnmigratedTableError, match=what):
            work()
    assert (delta_table(lake, "steps").version(), last_finished(lake)) == (before, 1)
    assert read_plan(lake, 2) is None
    changed.earlier()
    assert bring(lake, spool).rows_stored == 10


def _filled(rows, name, values):
    place = rows.schema.get_field_index(name)
    return place, rows.schema.field(place), [values]
