"""A summary of older segments, so that an ingest need not read all of the table ``segments``.

    <lake>/known/<plan>~<sha256>.parquet     of all rows of ``segments`` up to a plan:
        streams    table, incarnation, highest segment number, first and last plan: one row each
        odd rows   whole: what was damaged or is no segment has no number to be known by

A recorder counts its segments up. So a file in the spool whose number is above its stream's highest was not taken in
up to that plan, and neither was one of a stream that is not there. Any other is looked up, by its digest, in those
data files of ``segments`` that can hold its stream: a segment that is sent again after a year is known as ever.

The summary says where to look, never that something is known. It is made again by whoever finds days that it lacks,
always the same for the same plan; lost or damaged it costs one reading of the whole table.
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
"""Rows that are summed up at a time; fewer are read as fast."""

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


def save(store: "Store", summary: Summary) -> None:
    """Write a summary down and delete those before it. A lake that cannot be written goes without."""
    both = pa.concat_tables([summary.streams, summary.odd], promote_options="default")
    sink = pa.BufferOutputStream()
    pq.write_table(both.replace_schema_metadata({_ROWS: str(summary.rows).encode()}), sink, compression="zstd")
    raw = sink.getvalue().to_pybytes()
    with suppress(OSError):
        before = [one.path for one in listed(store.fs, store.path(FOLDER))]
        name = f"{FOLDER}/{summary.plan:010d}~{hashlib.sha256(raw).hexdigest()}.parquet"
        store.put_if_absent(name, raw)
        for path in before:
            if path < store.path(name):
                with suppress(FileNotFoundError):
                    store.fs.rm_file(path)


def load(store: "Store", live: pa.Table, last: int) -> Summary:
    """Return the newest summary that is sound and of this table; an empty one where there is none."""
    none = Summary(0, 0, no_streams(), no_rows())
    if (pc.sum(live["num_records"]).as_py() or 0) < LEAST_ROWS:
        return none
    for path in sorted((one.path for one in listed(store.fs, store.path(FOLDER))), reverse=True):
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
        if (pc.sum(covered["num_records"]).as_py() or 0) > rows:  # the table was restored, and went another way
            continue
        is_stream = pc.is_valid(both["last_segment"])
        streams = both.filter(is_stream).select(none.streams.column_names).cast(none.streams.schema)
        odd = both.filter(pc.invert(is_stream)).select(none.odd.column_names).cast(none.odd.schema)
        return Summary(int(stem), rows, streams.replace_schema_metadata(None), odd.replace_schema_metadata(None))
    return none


def no_rows() -> pa.Table:
    """Return rows with `COLUMNS` of the table ``segments``: none."""
    schema = arrow_schema(contract("segments"))
    return pa.schema([pa.field(name, schema.field(name).type) for name in COLUMNS]).empty_table()


def no_streams() -> pa.Table:
    """Return the streams of a summary of nothing."""
    kinds = {"table": pa.string(), "incarnation": pa.int64(), "last_segment": pa.int32()}
    return pa.schema({**kinds, "first_plan": pa.int64(), "last_plan": pa.int64()}).empty_table()


_LOOK: Final = ("incarnation", "segment", "unreadable", "signed_by")
_SUMMED: Final = ("table", "incarnation", "segment", "plan")
_BATCH_ROWS: Final = 262_144
_PACKS: Final = pa.schema({"pack": pa.string(), "date": pa.date32(), "members": pa.int64()})
RECENT_DAYS: Final = 2
"""Days that are read from the table itself; what is listed most often was taken in lately."""
MOST_DAYS: Final = 31
_SPAN: Final = ("last_segment", "first_plan", "last_plan")


class IngestionIndex:
    """What the table ``segments`` says, read as far as it is asked for.

    Parameters
    ----------
    handle
        The table's; None where it was never written.
    """

    def __init__(self, store: "Store", handle: "DeltaTable | None", now: datetime | None = None) -> None:
        self._store, self._today = store, (now or datetime.now(UTC)).date()
        self._live = _no_files() if handle is None else _spans(files(handle))
        last = 0 if handle is None else number_of(handle)
        self._summary = _extend_summary(store, self._live, load(store, self._live, last), self._today)
        self._recent_files(())

    def _recent_files(self, days: Collection[str]) -> None:
        """Return the data files with rows of some days or later, or with rows that the summary leaves out."""
        since = self._today
        for day in days:
            with suppress(ValueError):
                since = min(since, date.fromisoformat(day))
        since = max(since, self._today - timedelta(days=MOST_DAYS)) - timedelta(days=1)
        late = pc.greater_equal(self._live["date"], pa.scalar(since, pa.date32()))
        wanted = pc.or_(late, pc.greater(self._live["max.plan"], self._summary.plan))
        self._far, self._near = self._live.filter(pc.invert(wanted)), self._live.filter(wanted)

    def recent_member_count(self, days: Collection[str]) -> pa.Table:
        """Return how many sound members of packs were taken in on some days or later, or are not summed up.

        Columns pack, date and members; a pack may have several rows. A rank's minute is a segment, and a day of a large
        job millions: so only small columns are read, and a part of a file at a time.

        Parameters
        ----------
        days
            Names of the day folders that were listed.
        """
        self._recent_files(days)
        of = ("pack", "date", "unreadable")
        looks = read_batches(
            self._store, contract("segments"), self._near, of, batch_rows=_BATCH_ROWS, dictionaries=True
        )
        return pa.concat_tables([_PACKS.empty_table(), *map(_members, looks)])

    def of(self, files: Iterable["SpoolFile"]) -> pa.Table:
        """Return the rows, with `COLUMNS`, that tell of some files and of the slot files that they are cuts of.

        With them come those of all that is no sound segment, some of each process that recorded the files, signed or
        not, and perhaps others.
        """
        named = [item for item in files if item.name is not None]
        near = pa.concat_tables([no_rows(), *_rows_about(self._store, self._near, named, odd=True)])
        return pa.concat_tables([near, self._summary.odd, *self._long_ago(named, near)])

    def _long_ago(self, named: list["SpoolFile"], near: pa.Table) -> Iterator[pa.Table]:
        """Yield the rows of files that are not near, of streams that some files can be old segments of."""
        sums = self._summary.streams
        wanted = pa.array({item.name.incarnation for item in named if item.name}, pa.int64())
        sums = sums.filter(pc.is_in(sums["incarnation"], value_set=wanted))
        if not sums.num_rows or not self._far.num_rows:
            return
        last = {(row["table"], row["incarnation"]): row for row in sums.to_pylist()}
        digests = pa.array([item.sha256 for item in named], pa.string())
        at_hand = set(pc.unique(near["sha256"].filter(pc.is_in(near["sha256"], value_set=digests))).to_pylist())
        known_streams = [
            item
            for item in named
            if item.name
            and (row := last.get((item.table, item.name.incarnation))) is not None
            and item.name.segment <= row["last_segment"]
            and item.sha256 not in at_hand
        ]
        if not known_streams:
            return
        streams = {(item.table, item.name.incarnation) for item in known_streams if item.name}
        first = min(last[stream]["first_plan"] for stream in streams)
        latest = max(last[stream]["last_plan"] for stream in streams)
        far = self._far
        far = far.filter(pc.and_(pc.less_equal(far["min.plan"], latest), pc.greater_equal(far["max.plan"], first)))
        yield from _rows_about(self._store, far, known_streams, odd=False)


def not_taken_in(store: "Store", spooled: list["SpoolFile"]) -> list[list["SpoolFile"]]:
    """Return the files of a spool that no finished plan took in, see `ingestion_index.unknown`."""
    return new_files(spooled, IngestionIndex(store, delta_table(store, "segments")).of(spooled))


def _extend_summary(store: "Store", live: pa.Table, summary: Summary, today: date) -> Summary:
    """Return the summary with the days that are not recent any more, written down where it grew."""
    old = live.filter(pc.less(live["date"], pa.scalar(today - timedelta(days=RECENT_DAYS), pa.date32())))
    old = old.filter(pc.and_(pc.greater(old["max.plan"], summary.plan), pc.less(old["max.plan"], _NEVER)))
    if (pc.sum(old["num_records"]).as_py() or 0) < LEAST_ROWS:
        return summary
    plan = int(pc.max(old["max.plan"]).as_py())
    old_files = live.filter(pc.and_(pc.less_equal(live["min.plan"], plan), pc.greater(live["max.plan"], summary.plan)))
    rows, streams, odd = summary.rows, [summary.streams], [summary.odd]
    looks = read_batches(store, contract("segments"), old_files, _SUMMED, batch_rows=_BATCH_ROWS)
    for mine in (part.filter(_plans_between(part["plan"], summary.plan, plan)) for part in looks):
        rows += mine.num_rows
        named = mine.filter(pc.is_valid(mine["incarnation"]))
        sums = named.group_by(["table", "incarnation"]).aggregate(
            [("segment", "max"), ("plan", "min"), ("plan", "max")]
        )
        streams.append(sums.rename_columns(["table", "incarnation", *_SPAN]).select(summary.streams.column_names))
    strange = _rows_about(store, old_files, [], odd=True)
    odd += [part.filter(pc.and_(_is_odd(part), _plans_between(part["plan"], summary.plan, plan))) for part in strange]
    every = pa.concat_tables(part.cast(summary.streams.schema) for part in streams)
    sums = every.group_by(["table", "incarnation"]).aggregate(
        [("last_segment", "max"), ("first_plan", "min"), ("last_plan", "max")]
    )
    sums = sums.rename_columns(["table", "incarnation", *_SPAN]).cast(summary.streams.schema)
    keys = [("table", "ascending"), ("incarnation", "ascending")]
    every_odd = pa.concat_tables(odd).sort_by([("plan", "ascending"), ("uri_name", "ascending")])
    grown = Summary(plan, rows, sums.sort_by(keys), every_odd)
    save(store, grown)
    return grown


_NEVER: Final = 2**62


def _spans(live: pa.Table) -> pa.Table:
    """Return live files with the first and the last plan of their rows; any where the log does not tell."""
    spans: dict[str, Any] = {"min.plan": 0, "max.plan": _NEVER}
    kept = live.select(["path", "size_bytes", "num_records", "date"])
    for name, default in spans.items():
        extreme = live[name].cast(pa.int64()) if name in live.column_names else pa.nulls(live.num_rows, pa.int64())
        kept = kept.append_column(name, pc.fill_null(extreme, default))
    return kept


def _rows_about(store: "Store", files_: pa.Table, named: Iterable["SpoolFile"], *, odd: bool) -> Iterator[pa.Table]:
    """Yield rows of data files about segments' slot files; and, if asked for, those of odd segments."""
    names = [item.name for item in named if item.name]
    incarnations = pa.array({name.incarnation for name in names}, pa.int64())
    segments = pa.array({name.segment for name in names}, pa.int32())

    def choose(look: pa.Table) -> pa.ChunkedArray:
        # Rows of other slot files come along where two streams have other numbers; that is rare and does no harm.
        is_slot_file = pc.and_(
            pc.is_in(look["incarnation"], value_set=incarnations), pc.is_in(look["segment"], value_set=segments)
        )
        chosen = pc.or_(is_slot_file, _first_of(look, incarnations))
        return pc.or_(chosen, pc.is_valid(look["unreadable"])) if odd else chosen

    schema = no_rows().schema
    for rows in read_where(store, contract("segments"), files_, COLUMNS, _LOOK, choose):
        yield rows.replace_schema_metadata(None).cast(schema)


def _first_of(look: pa.Table, incarnations: pa.Array) -> pa.Array:
    """Return a mask of the first sound segment of each of some processes, signed and not."""
    sound = pc.and_(pc.is_null(look["unreadable"]), pc.is_in(look["incarnation"], value_set=incarnations))
    places = np.flatnonzero(sound.to_numpy())
    kinds = look["incarnation"].take(places).to_numpy() * 2 + look["signed_by"].is_valid().take(places).to_numpy()
    mask = np.zeros(look.num_rows, bool)
    mask[places[np.unique(kinds, return_index=True)[1]]] = True
    return pa.array(mask)


def _members(rows: pa.Table) -> pa.Table:
    """Return how many sound members of each pack some rows tell of, by date."""
    sound = rows.filter(pc.and_(pc.is_valid(rows["pack"]), pc.is_null(rows["unreadable"])))
    plain = sound.set_column(0, "pack", sound["pack"].cast(pa.string())).select(["pack", "date"])
    counts = plain.group_by(["pack", "date"]).aggregate([([], "count_all")])
    return counts.rename_columns(_PACKS.names).cast(_PACKS)


def _plans_between(plans: pa.ChunkedArray, after: int, until: int) -> pa.ChunkedArray:
    return pc.and_(pc.greater(plans, after), pc.less_equal(plans, until))


def _is_odd(rows: pa.Table) -> pa.ChunkedArray:
    """Return which rows are of a file that was read and is no sound segment."""
    return pc.and_(pc.is_valid(rows["unreadable"]), pc.invert(is_unread(rows["unreadable"])))


def _no_files() -> pa.Table:
    plans = [pa.field(f"{side}.plan", pa.int64()) for side in ("min", "max")]
    return pa.schema([*FILE_SCHEMA, *plans]).empty_table()
