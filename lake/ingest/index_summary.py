"""A summary of old rows of the table ``segments``, so that an ingest need not read the whole table.

    <lake>/known/<plan>~<sha256>.parquet     summary of all rows of ``segments`` up to a plan:
        streams    one row per stream: table, incarnation, highest segment number, first and last plan
        odd rows   complete rows of damaged files and of files that are no segments, since they have no segment number

A recorder numbers its segments upwards. So a file of the spool was not ingested up to that plan if its segment number
is above its stream's highest, or if its stream is not in the summary. Any other file is looked up by digest in the data
files of ``segments`` that can contain its stream. So a segment that is sent again after a year is still recognized.

The summary only says where to look: it never proves that a file was ingested. An ingest that finds old days missing
from it writes a new summary, which is the same for the same plan. Without a sound summary, an ingest reads the whole
table once.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.ingestion_index import IDENTITY, STREAM, new_files
from ranklake.lake.ingest.spool.packs import is_unread
from ranklake.lake.store.files import listed
from ranklake.lake.tables.commit import number_of
from ranklake.lake.tables.live_files import FILE_SCHEMA, files
from ranklake.lake.tables.read import read_batches, read_where
from ranklake.lake.tables.tables import delta_table

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.ingest.spool.packs import SpoolFile
    from ranklake.lake.store.store import Store

FOLDER: Final = "known"

COLUMNS: Final = (*IDENTITY, *STREAM, "segment", "plan", "slots", "date")

LEAST_ROWS: Final = 50_000
"""Below this number of rows, no summary is written: reading the rows is as fast."""

_ROWS: Final = b"ranklake.rows"


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of the rows of ``segments`` up to a plan.

    Attributes
    ----------
    plan, rows
        Number of the plan, and number of rows up to it.
    streams
        One row per stream, with columns table, incarnation, last_segment, first_plan, last_plan.
    odd
        Rows of damaged files and of files that are no segments, with columns `COLUMNS`.
    """

    plan: int
    rows: int
    streams: pa.Table
    odd: pa.Table


def save(store: "Store", summary: Summary) -> None:
    """Write a summary and delete older ones. Does nothing if the lake cannot be written."""
    both = pa.concat_tables([summary.streams, summary.odd], promote_options="default")
    sink = pa.BufferOutputStream()
    pq.write_table(both.replace_schema_metadata({_ROWS: str(summary.rows).encode()}), sink, compression="zstd")
    raw = sink.getvalue().to_pybytes()
    with suppress(OSError):
        existing = [file.path for file in listed(store.fs, store.path(FOLDER))]
        name = f"{FOLDER}/{summary.plan:010d}~{hashlib.sha256(raw).hexdigest()}.parquet"
        store.put_if_absent(name, raw)
        for path in existing:
            if path < store.path(name):
                with suppress(FileNotFoundError):
                    store.fs.rm_file(path)


def load(store: "Store", live: pa.Table, last: int) -> Summary:
    """Return the newest sound summary that fits the table; an empty summary if there is none.

    Parameters
    ----------
    live
        Live data files of ``segments``, with the columns min.plan and max.plan.
    last
        Number of the last plan that committed to the table.
    """
    empty = Summary(0, 0, no_streams(), no_rows())
    if (pc.sum(live["num_records"]).as_py() or 0) < LEAST_ROWS:
        return empty
    for path in sorted((file.path for file in listed(store.fs, store.path(FOLDER))), reverse=True):
        stem, _, digest = path.rpartition("/")[2].removesuffix(".parquet").partition("~")
        try:
            raw = bytes(store.fs.cat_file(path))
        except OSError:
            continue
        if hashlib.sha256(raw).hexdigest() != digest or int(stem) > last:
            continue
        both = pq.read_table(pa.BufferReader(raw))
        rows = int((both.schema.metadata or {})[_ROWS])
        covered = live.filter(pc.less_equal(live["max.plan"], int(stem)))
        if (pc.sum(covered["num_records"]).as_py() or 0) > rows:  # the table was restored and has other rows since
            continue
        is_stream = pc.is_valid(both["last_segment"])
        streams = both.filter(is_stream).select(empty.streams.column_names).cast(empty.streams.schema)
        odd = both.filter(pc.invert(is_stream)).select(empty.odd.column_names).cast(empty.odd.schema)
        return Summary(int(stem), rows, streams.replace_schema_metadata(None), odd.replace_schema_metadata(None))
    return empty


def no_rows() -> pa.Table:
    """Return an empty table with `COLUMNS` of the table ``segments``."""
    schema = arrow_schema(contract("segments"))
    return pa.schema([pa.field(name, schema.field(name).type) for name in COLUMNS]).empty_table()


def no_streams() -> pa.Table:
    """Return an empty table with the columns of `Summary.streams`."""
    types = {"table": pa.string(), "incarnation": pa.int64(), "last_segment": pa.int32()}
    return pa.schema({**types, "first_plan": pa.int64(), "last_plan": pa.int64()}).empty_table()


_FILTER_COLUMNS: Final = ("incarnation", "segment", "unreadable", "signed_by")
_SUMMARY_COLUMNS: Final = ("table", "incarnation", "segment", "plan")
_BATCH_ROWS: Final = 262_144
_PACKS: Final = pa.schema({"pack": pa.string(), "date": pa.date32(), "members": pa.int64()})
RECENT_DAYS: Final = 2
"""Rows of this many last days are read from the table: most files in a spool were ingested recently."""
MOST_DAYS: Final = 31
_SPAN: Final = ("last_segment", "first_plan", "last_plan")


class IngestionIndex:
    """An index of the table ``segments`` that reads only the data files that a question needs.

    Parameters
    ----------
    handle
        Handle of the table; None before the first plan.
    """

    def __init__(self, store: "Store", handle: "DeltaTable | None", now: datetime | None = None) -> None:
        self._store, self._today = store, (now or datetime.now(UTC)).date()
        self._live = _no_files() if handle is None else _spans(files(handle))
        last = 0 if handle is None else number_of(handle)
        self._summary = _extend_summary(store, self._live, load(store, self._live, last), self._today)
        self._recent_files(())

    def _recent_files(self, days: Collection[str]) -> None:
        """Divide the data files into recent and old ones.

        Recent files have rows of the earliest of `days` or later (at most `MOST_DAYS`), or rows after the summary.
        """
        since = self._today
        for day in days:
            with suppress(ValueError):
                since = min(since, date.fromisoformat(day))
        since = max(since, self._today - timedelta(days=MOST_DAYS)) - timedelta(days=1)
        late = pc.greater_equal(self._live["date"], pa.scalar(since, pa.date32()))
        is_recent = pc.or_(late, pc.greater(self._live["max.plan"], self._summary.plan))
        self._old, self._recent = self._live.filter(pc.invert(is_recent)), self._live.filter(is_recent)

    def recent_member_count(self, days: Collection[str]) -> pa.Table:
        """Return the number of sound pack members that were ingested on some days or later, or after the summary.

        Returns columns pack, date and members; a pack may have several rows. Each rank records a segment a minute, so a
        day of a large job has millions. Therefore only small columns are read, and a part of a file at a time.

        Parameters
        ----------
        days
            Names of the day folders that were listed.
        """
        self._recent_files(days)
        columns = ("pack", "date", "unreadable")
        batches = read_batches(
            self._store, contract("segments"), self._recent, columns, batch_rows=_BATCH_ROWS, dictionaries=True
        )
        return pa.concat_tables([_PACKS.empty_table(), *map(_members, batches)])

    def rows_about(self, files: Iterable["SpoolFile"]) -> pa.Table:
        """Return the rows of ``segments`` about some files and about their slot files, with columns `COLUMNS`.

        The result also has all rows of files that are no sound segments, and at least one row of each process that
        recorded the files, signed and unsigned. It may have further rows.
        """
        segments = [item for item in files if item.name is not None]
        recent = pa.concat_tables([no_rows(), *_rows_about(self._store, self._recent, segments, odd=True)])
        return pa.concat_tables([recent, self._summary.odd, *self._old_rows(segments, recent)])

    def _old_rows(self, segments: list["SpoolFile"], recent: pa.Table) -> Iterator[pa.Table]:
        """Yield rows of old data files about segments that the summary does not exclude."""
        streams = self._summary.streams
        wanted = pa.array({item.name.incarnation for item in segments if item.name}, pa.int64())
        streams = streams.filter(pc.is_in(streams["incarnation"], value_set=wanted))
        if not streams.num_rows or not self._old.num_rows:
            return
        spans = {(row["table"], row["incarnation"]): row for row in streams.to_pylist()}
        digests = pa.array([item.sha256 for item in segments], pa.string())
        recent_digests = recent["sha256"].filter(pc.is_in(recent["sha256"], value_set=digests))
        already_read = set(pc.unique(recent_digests).to_pylist())
        perhaps_old = [
            item
            for item in segments
            if item.name
            and (row := spans.get((item.table, item.name.incarnation))) is not None
            and item.name.segment <= row["last_segment"]
            and item.sha256 not in already_read
        ]
        if not perhaps_old:
            return
        keys = {(item.table, item.name.incarnation) for item in perhaps_old if item.name}
        first_plan = min(spans[key]["first_plan"] for key in keys)
        last_plan = max(spans[key]["last_plan"] for key in keys)
        old = self._old
        old = old.filter(
            pc.and_(pc.less_equal(old["min.plan"], last_plan), pc.greater_equal(old["max.plan"], first_plan))
        )
        yield from _rows_about(self._store, old, perhaps_old, odd=False)


def not_taken_in(store: "Store", spooled: list["SpoolFile"]) -> list[list["SpoolFile"]]:
    """Return the files of a spool that no finished plan ingested, grouped as by `ingestion_index.new_files`."""
    return new_files(spooled, IngestionIndex(store, delta_table(store, "segments")).rows_about(spooled))


def _extend_summary(store: "Store", live: pa.Table, summary: Summary, today: date) -> Summary:
    """Add days that are no longer recent to the summary, if they have enough rows, and save it; return the summary."""
    old = live.filter(pc.less(live["date"], pa.scalar(today - timedelta(days=RECENT_DAYS), pa.date32())))
    old = old.filter(pc.and_(pc.greater(old["max.plan"], summary.plan), pc.less(old["max.plan"], _NEVER)))
    if (pc.sum(old["num_records"]).as_py() or 0) < LEAST_ROWS:
        return summary
    plan = int(pc.max(old["max.plan"]).as_py())
    old_files = live.filter(pc.and_(pc.less_equal(live["min.plan"], plan), pc.greater(live["max.plan"], summary.plan)))
    rows, streams, odd = summary.rows, [summary.streams], [summary.odd]
    batches = read_batches(store, contract("segments"), old_files, _SUMMARY_COLUMNS, batch_rows=_BATCH_ROWS)
    for new_rows in (batch.filter(_plans_between(batch["plan"], summary.plan, plan)) for batch in batches):
        rows += new_rows.num_rows
        segments = new_rows.filter(pc.is_valid(new_rows["incarnation"]))
        grouped = segments.group_by(["table", "incarnation"]).aggregate(
            [("segment", "max"), ("plan", "min"), ("plan", "max")]
        )
        streams.append(grouped.rename_columns(["table", "incarnation", *_SPAN]).select(summary.streams.column_names))
    batches = _rows_about(store, old_files, [], odd=True)
    odd += [
        batch.filter(pc.and_(_is_odd(batch), _plans_between(batch["plan"], summary.plan, plan))) for batch in batches
    ]
    all_streams = pa.concat_tables(part.cast(summary.streams.schema) for part in streams)
    grouped = all_streams.group_by(["table", "incarnation"]).aggregate(
        [("last_segment", "max"), ("first_plan", "min"), ("last_plan", "max")]
    )
    grouped = grouped.rename_columns(["table", "incarnation", *_SPAN]).cast(summary.streams.schema)
    keys = [("table", "ascending"), ("incarnation", "ascending")]
    all_odd = pa.concat_tables(odd).sort_by([("plan", "ascending"), ("uri_name", "ascending")])
    extended = Summary(plan, rows, grouped.sort_by(keys), all_odd)
    save(store, extended)
    return extended


_NEVER: Final = 2**62


def _spans(live: pa.Table) -> pa.Table:
    """Return live files with columns min.plan and max.plan of their rows; the widest span if the log has none."""
    spans: dict[str, Any] = {"min.plan": 0, "max.plan": _NEVER}
    result = live.select(["path", "size_bytes", "num_records", "date"])
    for name, default in spans.items():
        extreme = live[name].cast(pa.int64()) if name in live.column_names else pa.nulls(live.num_rows, pa.int64())
        result = result.append_column(name, pc.fill_null(extreme, default))
    return result


def _rows_about(
    store: "Store", data_files: pa.Table, segments: Iterable["SpoolFile"], *, odd: bool
) -> Iterator[pa.Table]:
    """Yield rows of some data files about segments and their slot files; with `odd`, also rows that have a reason."""
    names = [item.name for item in segments if item.name]
    incarnations = pa.array({name.incarnation for name in names}, pa.int64())
    numbers = pa.array({name.segment for name in names}, pa.int32())

    def select(rows: pa.Table) -> pa.ChunkedArray:
        # This may also select a segment number of one stream in another stream, which is rare and does no harm.
        is_slot_file = pc.and_(
            pc.is_in(rows["incarnation"], value_set=incarnations), pc.is_in(rows["segment"], value_set=numbers)
        )
        selected = pc.or_(is_slot_file, _first_of_each_process(rows, incarnations))
        return pc.or_(selected, pc.is_valid(rows["unreadable"])) if odd else selected

    schema = no_rows().schema
    for rows in read_where(store, contract("segments"), data_files, COLUMNS, _FILTER_COLUMNS, select):
        yield rows.replace_schema_metadata(None).cast(schema)


def _first_of_each_process(rows: pa.Table, incarnations: pa.Array) -> pa.Array:
    """Return a mask of the first signed and the first unsigned sound segment of each of some processes."""
    sound = pc.and_(pc.is_null(rows["unreadable"]), pc.is_in(rows["incarnation"], value_set=incarnations))
    indexes = np.flatnonzero(sound.to_numpy())
    keys = rows["incarnation"].take(indexes).to_numpy() * 2 + rows["signed_by"].is_valid().take(indexes).to_numpy()
    mask = np.zeros(rows.num_rows, bool)
    mask[indexes[np.unique(keys, return_index=True)[1]]] = True
    return pa.array(mask)


def _members(rows: pa.Table) -> pa.Table:
    """Return the number of sound members of each pack by date, from rows of ``segments``."""
    sound = rows.filter(pc.and_(pc.is_valid(rows["pack"]), pc.is_null(rows["unreadable"])))
    plain = sound.set_column(0, "pack", sound["pack"].cast(pa.string())).select(["pack", "date"])
    counts = plain.group_by(["pack", "date"]).aggregate([([], "count_all")])
    return counts.rename_columns(_PACKS.names).cast(_PACKS)


def _plans_between(plans: pa.ChunkedArray, after: int, until: int) -> pa.ChunkedArray:
    return pc.and_(pc.greater(plans, after), pc.less_equal(plans, until))


def _is_odd(rows: pa.Table) -> pa.ChunkedArray:
    """Return a mask of the rows about files that were read and are no sound segments."""
    return pc.and_(pc.is_valid(rows["unreadable"]), pc.invert(is_unread(rows["unreadable"])))


def _no_files() -> pa.Table:
    plans = [pa.field(f"{side}.plan", pa.int64()) for side in ("min", "max")]
    return pa.schema([*FILE_SCHEMA, *plans]).empty_table()
