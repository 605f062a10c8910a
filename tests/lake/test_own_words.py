"""No data file holds a word of rows that are elsewhere: each has a dictionary of its own rows' words alone."""

from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from governed import Site, any_rows
from own_words import words_of_no_row
from segments import DAY

from ranklake.lake.delta.own_words import own_words
from ranklake.lake.maintenance.compaction import merge_small
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.replay.run import replay
from ranklake.lake.spool.spool import Spool
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


@pytest.mark.parametrize("chunks", [1, 3])
def test_a_dictionary_keeps_the_words_of_its_rows(chunks):
    """Rows, NULLs and the order of words stay; words that no row has go, over all chunks."""
    words = pa.array(["a", None, "b", "c", None, "d"]).dictionary_encode()
    column = pa.chunked_array([words.slice(at, 3) for at in (0, 3, 1)[:chunks]])
    own = own_words(column)
    assert own.to_pylist() == column.to_pylist()
    assert all(chunk.dictionary.to_pylist() == sorted({*column.to_pylist()} - {None}) for chunk in own.chunks)
    nothing = pa.chunked_array([], column.type)
    assert own_words(nothing).to_pylist() == []


def test_a_result_is_written_with_its_own_words():
    """Parquet of a query has no word of rows that the query left out."""
    column = pa.chunked_array([pa.array([SECRET, "fine"]).dictionary_encode()]).slice(1)
    nested = pa.chunked_array([pa.array([1, 2]).slice(1)])
    raw = as_parquet(pa.table({"message": column, "n": nested}))
    assert SECRET.encode() not in raw
    assert pq.read_table(pa.BufferReader(raw))["message"].to_pylist() == ["fine"]
