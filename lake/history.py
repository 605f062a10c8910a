"""A summary of what was taken in long ago, so that an ingest need not read all of the table ``segments``.

    <lake>/known/<plan>~<sha256>.parquet     of all rows of ``segments`` up to a plan:
        streams    table, incarnation, highest segment number, first and last plan: one row each
        odd rows   whole: what was damaged or is no segment has no number to be known by

A recorder counts its segments up. So a file in the spool whose number is above its stream's highest was not taken in
up to that plan, and neither was one of a stream that is not there. Any other is looked up, by its digest, in those
data files of ``segments`` that can hold its stream: a segment that is sent again after a year is known as ever.

The summary says where to look, never that something is known. It is made anew by whoever finds days that it lacks,
always the same for the same plan; lost or damaged it costs one reading of the whole table.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ranklake.lake.commit import files, number_of
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.known import IDENTITY, STREAM
from ranklake.lake.listing import listed
from ranklake.lake.read import read_some
from ranklake.lake.spool import GONE

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.spool import Spooled
    from ranklake.lake.store import Lake

FOLDER: Final = "known"
COLUMNS: Final = (*IDENTITY, *STREAM, "segment", "plan", "slots", "date")
RECENT_DAYS: Final = 2
"""Days that are read from the table itself; what is listed most often was taken in lately."""
MOST_DAYS: Final = 31
LEAST_ROWS: Final = 50_000
"""Rows that are summed up at a time; fewer are read as fast."""
_SPAN: Final = ("last_segment", "first_plan", "last_plan")
_ROWS: Final = b"ranklake.rows"


@dataclass(frozen=True, slots=True)
class Summary:
    """What was taken in up to a plan.

    Attributes
    ----------
    plan, rows
        The plan, and how many rows of ``segments`` there are up to it.
    streams
        Columns table, incarnation, last_segment, first_plan, last_plan.
    odd
        Columns `COLUMNS`.
    """

    plan: int
    rows: int
    streams: pa.Table
    odd: pa.Table


class History:
    """What the table ``segments`` says, read as far as it is asked for.

    Parameters
    ----------
    handle
        The table's; None where it was never written.
    """

    def __init__(self, lake: "Lake", handle: "DeltaTable | None", now: datetime | None = None) -> None:
        self._lake, self._today = lake, (now or datetime.now(UTC)).date()
        self._live = _no_files() if handle is None else _spans(files(handle))
        last = 0 if handle is None else number_of(handle)
        self._summary = _grown(lake, self._live, _load(lake, self._live, last), self._today)
        self._near = _empty()
        self._far = self._live

    def near(self, days: Collection[str]) -> pa.Table:
        """Return the rows, with `COLUMNS`, that are not summed up, and those of some day folders and later."""
        since = self._today
        for day in days:
            with suppress(ValueError):
                since = min(since, date.fromisoformat(day))
        since = max(since, self._today - timedelta(days=MOST_DAYS)) - timedelta(days=1)
        late = pc.greater_equal(self._live["date"], pa.scalar(since, pa.date32()))
        wanted = pc.or_(late, pc.greater(self._live["max.plan"], self._summary.plan))
        self._far = self._live.filter(pc.invert(wanted))
        self._near = pa.concat_tables([_empty(), *_rows(self._lake, self._live.filter(wanted))])
        return self._near

    def of(self, some: Iterable["Spooled"]) -> pa.Table:
        """Return the rows that tell of some files, and of the slot files that they are cuts of; after `near`."""
        return pa.concat_tables([self._near, self._summary.odd, *self._long_ago(some)])

    def _long_ago(self, some: Iterable["Spooled"]) -> Iterator[pa.Table]:
        """Yield the rows of files that are not near, of streams that some files can be old segments of."""
        named = [item for item in some if item.name is not None]
        sums = self._summary.streams
        wanted = pa.array({item.name.incarnation for item in named if item.name}, pa.int64())
        sums = sums.filter(pc.is_in(sums["incarnation"], value_set=wanted))
        if not sums.num_rows or not self._far.num_rows:
            return
        last = {(row["table"], row["incarnation"]): row for row in sums.to_pylist()}
        digests = pa.array([item.sha256 for item in named], pa.string())
        at_hand = set(
            pc.unique(self._near["sha256"].filter(pc.is_in(self._near["sha256"], value_set=digests))).to_pylist()
        )
        found = {
            (item.table, item.name.incarnation)
            for item in named
            if item.name
            and (row := last.get((item.table, item.name.incarnation))) is not None
            and item.name.segment <= row["last_segment"]
            and item.sha256 not in at_hand
        }
        if not found:
            return
        streams = pa.array(sorted({incarnation for _, incarnation in found}), pa.int64())
        first = min(last[stream]["first_plan"] for stream in found)
        latest = max(last[stream]["last_plan"] for stream in found)
        far = self._far
        far = far.filter(pc.and_(pc.less_equal(far["min.plan"], latest), pc.greater_equal(far["max.plan"], first)))
        for rows in _rows(self._lake, far):
            yield rows.filter(pc.and_(pc.is_in(rows["incarnation"], value_set=streams), pc.invert(_is_odd(rows))))


def _grown(lake: "Lake", live: pa.Table, summary: Summary, today: date) -> Summary:
    """Return the summary with the days that are not recent any more, written down where it grew."""
    old = live.filter(pc.less(live["date"], pa.scalar(today - timedelta(days=RECENT_DAYS), pa.date32())))
    old = old.filter(pc.and_(pc.greater(old["max.plan"], summary.plan), pc.less(old["max.plan"], _NEVER)))
    if (pc.sum(old["num_records"]).as_py() or 0) < LEAST_ROWS:
        return summary
    plan = int(pc.max(old["max.plan"]).as_py())
    some = live.filter(pc.and_(pc.less_equal(live["min.plan"], plan), pc.greater(live["max.plan"], summary.plan)))
    rows, streams, odd = summary.rows, [summary.streams], [summary.odd]
    for part in _rows(lake, some):
        mine = part.filter(pc.and_(pc.greater(part["plan"], summary.plan), pc.less_equal(part["plan"], plan)))
        rows += mine.num_rows
        odd.append(mine.filter(_is_odd(mine)))
        named = mine.filter(pc.is_valid(mine["incarnation"]))
        sums = named.group_by(["table", "incarnation"]).aggregate(
            [("segment", "max"), ("plan", "min"), ("plan", "max")]
        )
        streams.append(sums.rename_columns(["table", "incarnation", *_SPAN]).select(summary.streams.column_names))
    every = pa.concat_tables(part.cast(summary.streams.schema) for part in streams)
    sums = every.group_by(["table", "incarnation"]).aggregate(
        [("last_segment", "max"), ("first_plan", "min"), ("last_plan", "max")]
    )
    sums = sums.rename_columns(["table", "incarnation", *_SPAN]).cast(summary.streams.schema)
    keys = [("table", "ascending"), ("incarnation", "ascending")]
    strange = pa.concat_tables(odd).sort_by([("plan", "ascending"), ("uri_name", "ascending")])
    grown = Summary(plan, rows, sums.sort_by(keys), strange)
    _save(lake, grown)
    return grown


def _save(lake: "Lake", summary: Summary) -> None:
    """Write a summary down and delete those before it. A lake that cannot be written goes without."""
    both = pa.concat_tables([summary.streams, summary.odd], promote_options="default")
    sink = pa.BufferOutputStream()
    pq.write_table(both.replace_schema_metadata({_ROWS: str(summary.rows).encode()}), sink, compression="zstd")
    raw = sink.getvalue().to_pybytes()
    with suppress(OSError):
        before = [one.path for one in listed(lake.fs, lake.path(FOLDER))]
        name = f"{FOLDER}/{summary.plan:010d}~{hashlib.sha256(raw).hexdigest()}.parquet"
        lake.put_if_absent(name, raw)
        for path in before:
            if path < lake.path(name):
                with suppress(FileNotFoundError):
                    lake.fs.rm_file(path)


def _load(lake: "Lake", live: pa.Table, last: int) -> Summary:
    """Return the newest summary that is sound and of this table; an empty one where there is none."""
    none = Summary(0, 0, _no_streams(), _empty())
    if (pc.sum(live["num_records"]).as_py() or 0) < LEAST_ROWS:
        return none
    for path in sorted((one.path for one in listed(lake.fs, lake.path(FOLDER))), reverse=True):
        said, _, digest = path.rpartition("/")[2].removesuffix(".parquet").partition("~")
        try:
            raw = bytes(lake.fs.cat_file(path))
        except OSError:
            continue
        if hashlib.sha256(raw).hexdigest() != digest or int(said) > last:
            continue
        both = pq.read_table(pa.BufferReader(raw))
        rows = int((both.schema.metadata or {})[_ROWS])
        covered = live.filter(pc.less_equal(live["max.plan"], int(said)))
        if (pc.sum(covered["num_records"]).as_py() or 0) > rows:  # the table was restored, and went another way
            continue
        is_stream = pc.is_valid(both["last_segment"])
        streams = both.filter(is_stream).select(none.streams.column_names).cast(none.streams.schema)
        odd = both.filter(pc.invert(is_stream)).select(none.odd.column_names).cast(none.odd.schema)
        return Summary(int(said), rows, streams.replace_schema_metadata(None), odd.replace_schema_metadata(None))
    return none


_NEVER: Final = 2**62


def _spans(live: pa.Table) -> pa.Table:
    """Return live files with the first and the last plan of their rows; any where the log does not tell."""
    spans: dict[str, Any] = {"min.plan": 0, "max.plan": _NEVER}
    kept = live.select(["path", "size_bytes", "num_records", "date"])
    for name, default in spans.items():
        told = live[name].cast(pa.int64()) if name in live.column_names else pa.nulls(live.num_rows, pa.int64())
        kept = kept.append_column(name, pc.fill_null(told, default))
    return kept


def _rows(lake: "Lake", some: pa.Table) -> Iterator[pa.Table]:
    schema = _empty().schema
    for _, rows in read_some(lake, contract("segments"), some, COLUMNS):
        yield rows.replace_schema_metadata(None).cast(schema)


def _is_odd(rows: pa.Table) -> pa.ChunkedArray:
    """Return which rows tell of a file that was read and is no sound segment."""
    return pc.fill_null(pc.not_equal(rows["unreadable"], GONE), fill_value=False)


def _empty() -> pa.Table:
    schema = arrow_schema(contract("segments"))
    return pa.schema([pa.field(name, schema.field(name).type) for name in COLUMNS]).empty_table()


def _no_streams() -> pa.Table:
    kinds = {"table": pa.string(), "incarnation": pa.int64(), "last_segment": pa.int32()}
    return pa.schema({**kinds, "first_plan": pa.int64(), "last_plan": pa.int64()}).empty_table()


def _no_files() -> pa.Table:
    kinds = {"path": pa.string(), "size_bytes": pa.int64(), "num_records": pa.int64(), "date": pa.date32()}
    return pa.schema({**kinds, "min.plan": pa.int64(), "max.plan": pa.int64()}).empty_table()
