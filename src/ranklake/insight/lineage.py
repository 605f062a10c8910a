"""The way of a table's rows of one run back to their bytes: tables, data files, segments, each digest verified."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from ranklake.lake.contracts.load import contract
from ranklake.lake.tables.live_files import damaged, files
from ranklake.lake.tables.read import read, read_some
from ranklake.lake.tables.tables import latest

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.ingest.spool.spool import Spool
    from ranklake.lake.store.lake import Lake

VERIFIED: Final = "verified"
GONE: Final = "not in the spool any more"
UNASKED: Final = "not looked for: no spool is configured"
_KEY: Final = ("attempt", "rank", "incarnation", "segment")
_LEDGER: Final = ("table", "run", *_KEY, "uri_name", "sha256", "rows_stored", "plan")
_INPUTS: Final = (
    *("output_table", "output_partition", "output_version", "input_table", "input_partition"),
    *("transform", "transform_sha256", "ts"),
)
_MEMBER: Final = re.compile(r"(?P<pack>.+)#(?P<offset>[0-9]+)\+(?P<size>[0-9]+)/.+")


@dataclass(frozen=True, slots=True)
class Transform:
    """A computed partition on the way: which code made it (name and SHA-256), in which Delta version, of what."""

    table: str
    partition: str
    version: int
    name: str
    sha256: str | None
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A data file with rows of the run; rows is None where it is damaged, and state says how."""

    table: str
    path: str
    rows: int | None
    state: str


@dataclass(frozen=True, slots=True)
class FedSegment:
    """A segment that fed the files: its path in the spool, digest, rows it gave to the table, plan that ingested it."""

    table: str
    path: str
    sha256: str
    rows: int
    plan: int
    state: str


@dataclass(frozen=True, slots=True)
class Walk:
    """All that the rows of a run came from. `faults` has a line for each thing that is not what was written."""

    transforms: tuple[Transform, ...]
    files: tuple[StoredFile, ...]
    segments: tuple[FedSegment, ...]
    faults: tuple[str, ...]


def walk(lake: "Lake", target: "Contract", run: str, day: date | None, spool: "Spool | None") -> Walk:
    """Follow a table's rows of a run, of one UTC date or of all, back to segments.

    Raises `LakeUnreachableError`; `OSError` where a file may not be read. Nothing is written.
    """
    days = [day] if day is not None else _days(lake, target, run)
    pending = [(target.table, f"date={each}") for each in days]
    recorded = read(lake.tables, contract("lineage"), _INPUTS).sort_by("ts").to_pylist()
    by_output: dict[tuple[str, str], dict[tuple[str, str], dict[str, Any]]] = {}
    for row in recorded:
        inputs = by_output.setdefault((row["output_table"], row["output_partition"]), {})
        inputs[row["input_table"], row["input_partition"]] = row
    transforms, seen = [], set(pending)
    while pending:
        place = pending.pop()
        for partition in (place[1], ""):
            inputs = by_output.get((place[0], partition), {})
            if not inputs:
                continue
            last = list(inputs.values())[-1]
            names = tuple(sorted({table for table, _ in inputs}))
            facts = (last["output_version"], last["transform"], last["transform_sha256"])
            transforms.append(Transform(place[0], partition, *facts, names))
            pending += [each for each in inputs if each not in seen]
            seen |= set(inputs)
    stored: list[StoredFile] = []
    fed: list[FedSegment] = []
    faults: list[str] = []
    contracts = lake.contracts()
    for table in sorted({table for table, _ in seen}):
        known = contracts.get(table)
        if known is None:
            continue
        partitions = {partition for name, partition in seen if name == table}
        dates = None if "" in partitions else sorted(date.fromisoformat(each[5:]) for each in partitions)
        keys: set[tuple[Any, ...]] = set()
        for file, own in _files(lake, known, run, dates):
            stored.append(file)
            keys |= own
            if file.state != VERIFIED:
                faults.append(f"{file.table}/{file.path}: {file.state}")
        fed += _segments(lake, table, run, keys, spool, faults)
    return Walk(tuple(transforms), tuple(stored), tuple(fed), tuple(faults))


def _days(lake: "Lake", target: "Contract", run: str) -> list[date]:
    rows = read(lake.tables, target, ["run", "date"])
    dates: list[date] = pc.unique(rows.filter(pc.field("run") == run)["date"]).to_pylist()
    return sorted(dates)


def _files(
    lake: "Lake", known: "Contract", run: str, dates: list[date] | None
) -> Iterator[tuple[StoredFile, set[tuple[Any, ...]]]]:
    """Yield the data files with rows of the run, and the segments that these rows name; a damaged one in any case."""
    handle = latest(lake.tables, known.table)
    if handle is None:
        return
    has_run = "run" in {column.name for column in known.columns}
    columns = ["run", *_KEY] if known.envelope else ["run"]
    live = files(handle, dates)
    for index in range(live.num_rows):
        single = live.slice(index, 1)
        facts = single.select(["path", "num_records"]).to_pylist()[0]
        wrong = damaged(lake.tables, known.table, single)
        if wrong:
            yield StoredFile(known.table, facts["path"], None, wrong[0].why), set()
            continue
        if not has_run:
            yield StoredFile(known.table, facts["path"], facts["num_records"], VERIFIED), set()
            continue
        for path, rows in read_some(lake.tables, known, single, columns):
            own = rows.filter(pc.field("run") == run)
            keys = own.group_by(list(_KEY)).aggregate([]).select(list(_KEY)).to_pylist() if known.envelope else []
            if own.num_rows:
                named = {tuple(key[name] for name in _KEY) for key in keys}
                yield StoredFile(known.table, path, own.num_rows, VERIFIED), named


def _segments(
    lake: "Lake", table: str, run: str, keys: set[tuple[Any, ...]], spool: "Spool | None", faults: list[str]
) -> list[FedSegment]:
    """Return the segments that rows name, as the ledger knows them, each looked at in the spool."""
    if not keys:
        return []
    ledger = read(lake.tables, contract("segments"), _LEDGER)
    chosen = (pc.field("table") == table) & (pc.field("run") == run) & (pc.field("rows_stored") > 0)
    result, missing = [], set(keys)
    for row in ledger.filter(chosen).sort_by([(name, "ascending") for name in _KEY]).to_pylist():
        key = tuple(row[name] for name in _KEY)
        if key not in keys:
            continue
        missing.discard(key)
        state = UNASKED if spool is None else _look(spool, row["uri_name"], row["sha256"])
        facts = (row["sha256"], row["rows_stored"], row["plan"], state)
        result.append(FedSegment(table, row["uri_name"], *facts))
        if state not in {VERIFIED, GONE, UNASKED}:
            faults.append(f"{row['uri_name']}: {state}")
    for key in sorted(missing):
        name = ", ".join(f"{name} {value}" for name, value in zip(_KEY, key, strict=True))
        faults.append(f"{table}: rows of {name} name a segment that the table segments does not know")
    return result


def _look(spool: "Spool", path: str, digest: str) -> str:
    """Compare a segment's bytes in the spool, alone or in a pack, with its digest."""
    member = _MEMBER.fullmatch(path)
    try:
        if member is None:
            raw = spool.fs.cat_file(path)
        else:
            begin = int(member["offset"])
            raw = spool.fs.cat_file(member["pack"], start=begin, end=begin + int(member["size"]))
    except FileNotFoundError:
        return GONE
    return VERIFIED if hashlib.sha256(raw).hexdigest() == digest else "its bytes differ from the digest in segments"
