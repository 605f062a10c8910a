"""Files with rows that a table cannot have: a plan may not bring one, and one that is there is named in one line."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from governed import Site, die_before
from loose import loose
from segments import step_rows

from ranklake.cli import run
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.maintenance.compaction import merge_small
from ranklake.lake.plans.driver import drive
from ranklake.lake.plans.plan import Plan, RefusedPlanError
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.tables.commit import replace_partitions
from ranklake.lake.tables.live_files import DamagedFileError
from ranklake.lake.tables.read import read
from ranklake.retention.proposals import releases, retention_plans


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def twice(rows):
    """Return rows with a column of a name that is there."""
    return rows.append_column("rank", rows["rank"])


def not_unicode(rows):
    """Return rows with a run that is no text."""
    raw = pa.array([b"\xd5" * 3] * len(rows), pa.binary())
    text = pa.StringArray.from_buffers(len(rows), raw.buffers()[1], raw.buffers()[2])
    return rows.set_column(rows.schema.get_field_index("run"), "run", text)


def typed(rows):
    """Return rows with numbers as text."""
    at = rows.schema.get_field_index("rank")
    return rows.set_column(at, "rank", rows["rank"].cast(pa.string()))


def nameless(rows):
    """Return rows that do not say their run."""
    return rows.set_column(rows.schema.get_field_index("run"), "run", pa.nulls(len(rows), pa.string()))


def forged(path, change):
    """Write a data file's rows anew, changed, and return how large it is now."""
    pq.write_table(change(loose(pq.read_table(path, partitioning=None))), path)
    return path.stat().st_size


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (twice, "two columns have one name"),
        (not_unicode, "no sound Parquet"),
        (nameless, "rows have no run"),
        (lambda rows: rows.drop_columns(["run"]), "rows have no run"),
        (lambda rows: rows.rename_columns([*rows.column_names[:-1], "é" * 200]), None),
    ],
)
def test_rows_that_a_table_cannot_have_are_named(site, change, why):
    """Where a file was replaced, whoever reads it names it; a column that nobody knows harms nobody."""
    site.bring(step_rows(5))
    (path,) = Path(site.lake.path("tables", "steps")).glob("date=*/*.parquet")
    forged(path, change)
    if why is None:
        assert read(site.lake.tables, contract("steps")).num_rows == 5
        return
    with pytest.raises(DamagedFileError, match=why) as caught:
        read(site.lake.tables, contract("steps"))
    assert path.name in caught.value.where


@pytest.mark.parametrize(
    ("change", "why"),
    [(twice, "has two columns of one name"), (typed, "has another type in rank")],
)
def test_a_plan_brings_no_file_of_other_columns(site, change, why):
    """A merge whose new file was replaced, in a plan that agrees with it, is refused; sound rows stay as they were."""
    for segment in range(3):
        site.bring(step_rows(10, segment=segment), rows_before=10 * segment)
    with pytest.MonkeyPatch.context() as patched:
        die_before(patched, "steps")
        with pytest.raises(SystemExit):
            merge_small(site.lake, InProcess(), thorough=True)
    path = max(Path(site.lake.path("plans")).glob("*.json"))
    made = Plan.from_json(path.read_bytes(), str(path))
    (row,) = made.body["add"]
    size = forged(Path(site.lake.path("tables", "steps", row["path"])), change)
    path.write_bytes(replace(made, body={**made.body, "add": [{**row, "size_bytes": size}]}).to_json())
    with pytest.raises(RefusedPlanError, match=why):
        drive(site.lake, lambda _: None, InProcess())
    assert len(site.rows("steps")) == 30


@pytest.mark.parametrize(("module", "key"), [(retention_plans, "retention_plan"), (releases, "release")])
def test_a_register_s_row_without_a_plan_applies_nothing(site, module, key):
    """A row that says of no plan that it was carried out leaves the proposal as it was."""
    table, now = contract(module.TABLE), datetime.now(UTC)
    values = {key: "rp-0", "row_kind": "application", "ts": now, "date": now.date()}
    entry = pa.table({field.name: pa.array([values.get(field.name)], field.type) for field in arrow_schema(table)})
    replace_partitions(site.lake.tables, table, entry.cast(arrow_schema(table)), [now.date()])
    register = module.REGISTER.read if module is releases else module.register
    assert register(site.lake.tables)["rp-0"].applied is None
    assert run(["status", "--lake", str(site.folder / "lake")]) in {0, 1}
