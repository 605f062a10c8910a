"""No data file holds a word of rows that are elsewhere: each has a dictionary of its own rows' words alone."""

from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from archiving import archived, policies_in
from changed_contracts import retype
from governed import Site, any_rows
from own_words import words_of_no_row
from retaining import days_ago
from rollup_inputs import NOON, append
from segments import DAY, step_rows

from ranklake.lake.ingest.maintenance.compaction import merge_small
from ranklake.lake.ingest.replay.run import replay
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.migrations.applying import apply
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.roles import Role
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.parquet import trim_dictionary
from ranklake.retention.shares.sharing import share
from ranklake.views.result_set import as_parquet

SECRET = "zoe mailed her resignation"


def two_dates(site):
    """Bring lines of two dates in one round; return the path of the later date's folder."""
    rows = [
        any_rows("logs", 4, incarnation=7, start=DAY + timedelta(days=day), message=lines * 2)
        for day, lines in enumerate(([SECRET, "both"], ["fine", "both"]))
    ]
    both = pa.concat_tables(rows)
    at = both.schema.get_field_index("slot")
    site.bring(both.set_column(at, both.schema.field(at), pa.array(range(8), pa.int32())), "logs")
    return site.folder / "lake/tables/logs" / f"date={(DAY + timedelta(days=1)).date()}"


def test_rows_of_two_dates_share_no_dictionary(tmp_path):
    """A file of ingest, of a merge, and of a replay holds no word of the other date's rows."""
    site = Site(tmp_path)
    later = two_dates(site)
    assert words_of_no_row(tmp_path) == {}
    merge_small(site.lake, InProcess(), thorough=True)
    replay(site.lake, Spool(str(site.spool)), InProcess(), "logs", (DAY.date(), (DAY + timedelta(days=1)).date()))
    assert words_of_no_row(tmp_path) == {}
    assert all(SECRET.encode() not in path.read_bytes() for path in later.rglob("*.parquet"))
    assert len(site.rows("logs")) == 8


def test_a_share_has_no_word_of_rows_that_its_role_does_not_see(tmp_path):
    """Of a file with rows of several runs, a copy has the texts of those that are seen."""
    lake = Lake.create(str(tmp_path / "lake"))
    lines = {"open": "fine", "closed": SECRET}
    append(lake, "logs", [{"ts": NOON, "run": name, "message": line} for name, line in lines.items()] * 20)
    role = Role("reader", frozenset({"operational", "personal"}), frozenset({"logs"}), runs="run LIKE 'open%'")
    share(lake, role, str(tmp_path / "out"), "ada", InProcess())
    copies = list((tmp_path / "out").rglob("date=*/*.parquet"))
    assert [pq.read_table(path, partitioning=None)["message"].to_pylist() for path in copies] == [["fine"] * 20]
    assert words_of_no_row(tmp_path) == {}


def test_rows_that_went_leave_no_word_behind(tmp_path):
    """Retention of one run's lines, and an archive of another's: files of what stays have its words alone."""
    site = Site(tmp_path)
    rules = (
        "gone: {where: {table: logs, run: gone}, delete_after_days: 20, reason: asked}",
        "cold: {where: {table: logs, run: cold}, archive: {after_days: 20, to: TO}, reason: rarely read}",
    )
    lines = {"gone": SECRET, "cold": "cold line", "stays": "fine"}
    rows = [{"ts": days_ago(25), "run": name, "message": line} for name, line in lines.items()]
    append(site.lake, "logs", rows * 20)  # text that repeats is read with its dictionary
    policies = policies_in(tmp_path, *rules)
    archived(site, policies)
    archived(site, policies)
    assert [row["message"] for row in site.rows("logs")] == ["fine"] * 20
    assert words_of_no_row(tmp_path) == {}
    (copy,) = (tmp_path / "archive").rglob("*.parquet")
    assert pq.read_table(copy, partitioning=None)["message"].to_pylist() == ["cold line"] * 20


def test_a_migration_writes_the_words_of_its_rows(tmp_path, changed):
    """Files that a migration writes anew have them, too."""
    site = Site(tmp_path)
    site.bring(step_rows(5))
    site.bring(step_rows(5, run="r2", incarnation=8), run="r2", incarnation=8)
    changed.migrate("steps", retype)
    (done,) = apply(site.lake, InProcess(), "Ada")
    assert done.rows == 10
    assert words_of_no_row(tmp_path) == {}


@pytest.mark.parametrize("chunks", [1, 3])
def test_a_dictionary_keeps_the_words_of_its_rows(chunks):
    """Rows, NULLs and the order of words stay; words that no row has go, over all chunks."""
    words = pa.array(["a", None, "b", "c", None, "d"]).dictionary_encode()
    column = pa.chunked_array([words.slice(at, 3) for at in (0, 3, 1)[:chunks]])
    own = trim_dictionary(column)
    assert own.to_pylist() == column.to_pylist()
    assert all(chunk.dictionary.to_pylist() == sorted({*column.to_pylist()} - {None}) for chunk in own.chunks)
    nothing = pa.chunked_array([], column.type)
    assert trim_dictionary(nothing).to_pylist() == []


def test_a_result_is_written_with_its_own_words():
    """Parquet of a query has no word of rows that the query left out."""
    column = pa.chunked_array([pa.array([SECRET, "fine"]).dictionary_encode()]).slice(1)
    nested = pa.chunked_array([pa.array([1, 2]).slice(1)])
    raw = as_parquet(pa.table({"message": column, "n": nested}))
    assert SECRET.encode() not in raw
    assert pq.read_table(pa.BufferReader(raw))["message"].to_pylist() == ["fine"]
