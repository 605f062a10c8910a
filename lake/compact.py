"""One Dask task of ingest: some segments of one table in, sorted Parquet files and an account of every row out.

bytes ─▶ digest ─▶ Parquet ─▶ contract's types ─▶ one row a key ─▶ judged ─▶ one sorted file a date
             └────────┴────────────┴─▶ quarantine/<sha256>             └─▶ rejects
"""

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ranklake.errors import RanklakeError
from ranklake.lake.commit import append_files
from ranklake.lake.contracts.arrow import arrow_schema, conform
from ranklake.lake.contracts.edge import judge
from ranklake.lake.contracts.envelope import EncryptionError, NotAuthenticError, decrypt
from ranklake.lake.contracts.keys import find_key
from ranklake.lake.contracts.load import contract
from ranklake.lake.contracts.model import Contract
from ranklake.lake.contracts.segment import METADATA_KEY, NotASegmentError, SegmentFooter, SegmentName
from ranklake.lake.packs import Reader
from ranklake.lake.parquet import DataFile, bounds
from ranklake.lake.read import read_files
from ranklake.lake.spool import GONE, Spool
from ranklake.lake.store import Lake

Mask = npt.NDArray[np.bool_]
KEY = ("incarnation", "segment", "slot")


@dataclass(frozen=True, slots=True)
class Group:
    """A task: segments of one table that are compacted together.

    Attributes
    ----------
    lake_uri, spool_uri, storage
        Where to read and write.
    table
        As the spool's folder says.
    segments
        Rows of the plan: path, others (paths that claim the same digest), sha256, bytes, resent.
    plan, created
        The plan's number and time; rejected rows carry them.
    version
        Delta version of the table when the plan was made (-1: no table), for rows that were stored before.
    rejects_version
        Likewise of the table ``rejects``.
    store_rows, store_rejects
        False where an earlier try of the plan committed that table: then rows are counted, not written.
    encryption_key
        Where the keys of encrypted segments are; never a key.
    """

    lake_uri: str
    spool_uri: str
    storage: dict[str, str]
    table: str
    segments: list[dict[str, Any]]
    plan: int
    created: datetime
    version: int
    rejects_version: int
    store_rows: bool = True
    store_rejects: bool = True
    encryption_key: str = ""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a task did.

    Attributes
    ----------
    files, rejects
        New data files of the table and of ``rejects``; no commit names them yet.
    outcomes
        One row of the table ``segments`` per segment, as a dict, without plan and date.
    """

    files: list[DataFile]
    rejects: list[DataFile]
    outcomes: list[dict[str, Any]]


@dataclass(slots=True)
class _Segment:
    """A segment on its way through the task."""

    path: str
    sha256: str
    size_bytes: int
    resent: bool
    name: SegmentName | None
    footer: SegmentFooter | None = None
    rows: pa.Table | None = None
    unreadable: str | None = None
    counts: dict[str, int] = field(default_factory=lambda: {"rows_stored": 0, "rows_rejected": 0, "rows_duplicate": 0})


def compact(group: Group) -> Compacted:
    """Carry out one task. Repeatable: files of an earlier try are orphans that no commit names."""
    lake = Lake.open(group.lake_uri, group.storage)
    spool = Spool(group.spool_uri, group.storage)
    target = recorded_table(group.table)
    reader = Reader(spool.fs, (path for row in group.segments for path in (row["path"], *row["others"])))
    segments = [_load(lake, reader, target, row, group.encryption_key) for row in group.segments]
    read_in = [(segment, segment.rows) for segment in segments if segment.rows is not None and segment.rows.num_rows]
    if target is None or not read_in:
        return Compacted([], [], [_outcome(segment, group.table) for segment in segments])

    good = [segment for segment, _ in read_in]
    rows = pa.concat_tables([part for _, part in read_in])
    owner = np.repeat(np.arange(len(good)), [part.num_rows for _, part in read_in])
    first = _first_of_key(rows) & ~_stored_before(lake, target, group, good, rows)
    verdict = judge(target, rows)
    accepted = first & verdict.is_null().to_numpy(zero_copy_only=False)
    refused = first & ~accepted
    for index, segment in enumerate(good):
        mine = owner == index
        segment.counts["rows_stored"] = int(np.count_nonzero(mine & accepted))
        segment.counts["rows_rejected"] = int(np.count_nonzero(mine & refused))
        segment.counts["rows_duplicate"] = int(np.count_nonzero(mine & ~first))

    files: list[DataFile] = []
    rejects: list[DataFile] = []
    if group.store_rows and accepted.any():
        files = append_files(lake, target, _dated(rows.filter(pa.array(accepted)), target), group.plan)
    if group.store_rejects and refused.any():
        digests = [good[index].sha256 for index in owner[refused]]
        reasons = verdict.filter(pa.array(refused))
        table = reject_rows(
            rows.filter(pa.array(refused)), reasons, digests, "ingest", target, group.plan, group.created
        )
        rejects = append_files(lake, contract("rejects"), table, group.plan)
    return Compacted(files, rejects, [_outcome(segment, group.table) for segment in segments])


def recorded_table(name: str) -> Contract | None:
    """Return the contract of a table that ranks record, or None: no rank writes derived or system tables."""
    try:
        found = contract(name)
    except RanklakeError:
        return None
    return found if found.envelope else None


def _load(lake: Lake, reader: Reader, target: Contract | None, row: dict[str, Any], encryption_key: str) -> _Segment:
    """Read a segment; where several files claim its digest, the first that is sound.

    An outage of the store raises, and so does a key that is not at hand: the plan is then carried out again, and
    nothing is quarantined.
    """
    tried: list[_Segment] = []
    for path in (row["path"], *row["others"]):
        segment = _Segment(path, row["sha256"], row["bytes"], row["resent"], _name(path))
        try:
            raw = reader.read(path)
        except FileNotFoundError:
            segment.unreadable = GONE
            tried.append(segment)
            continue
        try:
            segment.footer, segment.rows = _read(raw, segment, target, encryption_key)
        except NotAuthenticError as error:
            segment.unreadable = error.what
        except EncryptionError:
            raise
        except RanklakeError as error:
            segment.unreadable = error.what
        except (pa.ArrowException, OSError, ValueError) as error:
            # The reason, never the text: an Arrow message can quote a value.
            segment.unreadable = f"not readable as Parquet ({type(error).__name__})"
        else:
            return segment
        segment.sha256 = hashlib.sha256(raw).hexdigest()
        lake.put_if_absent(f"quarantine/{segment.sha256}", raw)
        tried.append(segment)
    return min(tried, key=lambda segment: segment.unreadable == GONE)


def _name(path: str) -> SegmentName | None:
    try:
        return SegmentName.parse(path.rpartition("/")[2])
    except NotASegmentError:
        return None


def _read(
    raw: bytes, segment: _Segment, target: Contract | None, encryption_key: str
) -> tuple[SegmentFooter, pa.Table]:
    """Return footer and rows under the contract's types.

    Raises `NotASegmentError`, an Arrow error, or `EncryptionError` if it is encrypted and cannot be opened.
    """
    name = segment.name
    if name is None:
        raise NotASegmentError("not a segment's name")
    if target is None:
        raise NotASegmentError("no table of this name is recorded by ranks")
    if hashlib.sha256(raw).hexdigest() != segment.sha256:
        raise NotASegmentError("the bytes do not have the digest in the name")
    if name.key_id:
        raw = decrypt(find_key(encryption_key, name.key_id), raw, name.bond(target.table))
    return _parse(raw, name, target)


def _parse(raw: bytes, name: SegmentName, target: Contract) -> tuple[SegmentFooter, pa.Table]:
    """Return footer and rows under the contract's types. Raises `NotASegmentError` or an Arrow error."""
    file = pq.ParquetFile(pa.BufferReader(raw), page_checksum_verification=True)
    footer = SegmentFooter.from_json((file.schema_arrow.metadata or {}).get(METADATA_KEY, b""))
    said = (footer.table, footer.run, footer.attempt, footer.rank, footer.incarnation, footer.segment, footer.rows)
    meant = (target.table, name.run, name.attempt, name.rank, name.incarnation, name.segment, file.metadata.num_rows)
    if said != meant or name.rows != footer.rows or name.key_id != footer.key_id:
        raise NotASegmentError("name, footer and contents disagree")
    if footer.contract_version > target.version:
        raise NotASegmentError(
            f"written under contract version {footer.contract_version}, known up to {target.version}"
        )
    stored = file.read()
    stored.validate(full=True)  # text that is not UTF-8 would pass unseen until somebody reads it
    rows = conform(stored, target, segment=True)
    for column in ("run", "attempt", "rank", "incarnation", "segment"):
        if pc.any(pc.not_equal(rows[column], pa.scalar(getattr(name, column), rows[column].type))).as_py():
            raise NotASegmentError("name, footer and contents disagree")
    return footer, rows


def _first_of_key(rows: pa.Table) -> Mask:
    """Return a mask that keeps the first row of every (incarnation, segment, slot).

    The key is packed into one integer so that one stable sort finds the repeats. A row whose key has a NULL repeats
    none.
    """
    incarnation, segment, slot = (_dense(rows[name]) for name in KEY)
    packed = ((incarnation * (segment.max() + 1)) + segment) * (slot.max() + 1) + slot
    order = np.argsort(packed, kind="stable")
    ordered = packed[order]
    mask = np.ones(len(packed), bool)
    mask[order[1:]] = ordered[1:] != ordered[:-1]
    for name in KEY:
        mask |= rows[name].is_null().to_numpy()
    return mask


def _dense(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return codes 0, 1, … of a column's distinct values; NULL has a code of its own."""
    codes = column.combine_chunks().dictionary_encode(null_encoding="encode").indices
    return np.asarray(codes.to_numpy(zero_copy_only=False), np.int64)


def _stored_before(lake: Lake, target: Contract, group: Group, good: Sequence[_Segment], rows: pa.Table) -> Mask:
    """Return a mask of rows whose key an earlier plan stored or rejected.

    Only segments whose slot file was ingested before under another digest can hold such rows. The tables are read as of
    the plan's making, so that carrying out a half-committed plan again gives the same answer.
    """
    again = {(segment.name.incarnation, segment.name.segment) for segment in good if segment.name and segment.resent}
    if not again:
        return np.zeros(rows.num_rows, bool)
    theirs = pa.array({incarnation for incarnation, _ in again}, pa.int64())
    stored = (part for _, part in read_files(lake, target, KEY, version=group.version))
    rejects = (
        part for _, part in read_files(lake, contract("rejects"), [*KEY, "table"], version=group.rejects_version)
    )
    refused = (part.filter(pc.equal(part["table"], target.table)) for part in rejects)
    near = (part.filter(pc.is_in(part["incarnation"], theirs)) for part in itertools.chain(stored, refused))
    known = {key for part in near for key in _keys(part) if key[:2] in again}
    return np.fromiter((key in known for key in _keys(rows)), bool, rows.num_rows)


def _keys(rows: pa.Table) -> Iterator[tuple[int, int, int]]:
    return zip(*(rows[name].to_pylist() for name in KEY), strict=True)


def _dated(rows: pa.Table, target: Contract) -> pa.Table:
    dates = rows["ts"].cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us")).cast(pa.date32(), safe=False)
    return rows.append_column("date", dates).select(arrow_schema(target).names)


def reject_rows(
    rows: pa.Table,
    reasons: pa.Array,
    digests: Sequence[str | None],
    source: str,
    target: Contract,
    plan: int,
    when: datetime,
) -> pa.Table:
    """Return rows of the table ``rejects``; each refused row goes along whole as JSON, so that it can be replayed."""
    schema = arrow_schema(contract("rejects"))
    columns: dict[str, Any] = {name: rows[name] for name in ("run", "attempt", "rank", *KEY)}
    columns["reason"] = reasons
    columns["row"] = _as_json(rows)
    columns["sha256"] = digests
    constants = {
        "plan": plan,
        "source": source,
        "table": target.table,
        "ts": when,
        "date": when.date(),
    }
    arrays = []
    for column in schema:
        if column.name in constants:
            arrays.append(pa.repeat(pa.scalar(constants[column.name], column.type), rows.num_rows))
        elif column.name in columns:
            values = columns[column.name]
            arrays.append(values.cast(column.type) if hasattr(values, "cast") else pa.array(values, column.type))
        else:
            arrays.append(pa.nulls(rows.num_rows, column.type))
    return pa.table(arrays, schema=schema)


def _as_json(rows: pa.Table) -> list[str]:
    """Return each row as a JSON object.

    Times are ISO 8601, or microseconds since 1970 where the year has not four digits; a number that JSON lacks is
    "nan", "inf" or "-inf".
    """
    for place, column in enumerate(rows.schema):
        if pa.types.is_timestamp(column.type):
            moments = rows[column.name].cast(pa.int64()).to_pylist()
            texts = [None if moment is None else _iso(moment) for moment in moments]
            rows = rows.set_column(place, column.name, pa.array(texts, pa.string()))
    return [json.dumps({name: _jsonable(value) for name, value in row.items()}) for row in rows.to_pylist()]


def _iso(moment_us: int) -> str:
    try:
        return (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=moment_us)).isoformat()
    except OverflowError:
        return str(moment_us)


def _jsonable(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value.isoformat() if isinstance(value, date) else value


def _outcome(segment: _Segment, table: str) -> dict[str, Any]:
    name, footer = segment.name, segment.footer
    first, last = (None, None) if segment.rows is None else bounds(segment.rows["ts"])
    counts = dict(segment.counts)
    if segment.unreadable not in {None, GONE} and name is not None:  # the name says how many rows lie in quarantine
        counts["rows_rejected"] = name.rows
    return {
        "sha256": segment.sha256,
        "table": table,
        "uri_name": segment.path,
        "run": name.run if name else None,
        "attempt": name.attempt if name else None,
        "rank": name.rank if name else None,
        "incarnation": name.incarnation if name else None,
        "segment": name.segment if name else None,
        "rows": name.rows if name else None,
        "rows_before": footer.rows_before if footer else None,
        "gap_rows": sum(footer.gaps.values()) if footer else None,
        "gap_rows_before": footer.gaps_before if footer else None,
        "gaps": json.dumps(footer.gaps, sort_keys=True) if footer else None,
        "totals": json.dumps(footer.totals, sort_keys=True) if footer and footer.totals else None,
        "final": footer.final if footer else None,
        "unreadable": segment.unreadable,
        "contract_version": footer.contract_version if footer else None,
        "bytes": segment.size_bytes,
        "ts_min": first,
        "ts_max": last,
        **counts,
    }
