"""The register of releases: partitions that checks hold back, and rows in quarantine, that somebody answers for.

A release's name is a digest of its items, and is computed again when it is read, as that of a retention plan is.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.edge import row_values
from ranklake.lake.contracts.load import contract
from ranklake.lake.contracts.model import SEVERITIES
from ranklake.lake.plans.verification import is_committed_in, named_files
from ranklake.lake.tables.order import RECORDED_KEY, keys_sha256
from ranklake.lake.tables.read import read, read_some
from ranklake.retention.proposals.approvals import verify_approved
from ranklake.retention.proposals.proposals import ProposalKind, Risk
from ranklake.retention.proposals.registers import ItemizedProposal, ItemRegister

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.catalog import Catalog
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables


TABLE: Final = "quality_releases"


@dataclass(frozen=True, slots=True)
class Item:
    """What becomes free.

    Attributes
    ----------
    item_kind
        ``partition``: it is held back no more. ``rows``: they go from ``rejects`` to their table. ``segment``: the next
        ingest judges it again.
    table, partition_date
        Which: a partition of the table; of rows the date of ``rejects`` on which they were taken out; of a segment the
        date on which it was refused.
    about
        The checks that hold the partition, the reason for which the rows were taken out, or that and a segment's name.
    rows
        How many.
    content_sha256
        Digest of the partition's files, of the rows' keys, or of the segment.
    """

    item_kind: str
    table: str
    partition_date: date
    about: str
    rows: int
    content_sha256: str


@dataclass(frozen=True, slots=True)
class Release(ItemizedProposal[Item]):
    """A proposal to let items go on."""

    prefix: ClassVar[str] = "qr"
    item_kind: ClassVar[str] = "item_kind"
    noun: ClassVar[str] = "release"

    @property
    def facts(self) -> dict[str, Any]:
        """What the trail says of it."""
        counts = {"partitions": len(self.of("partition")), "rows": sum(item.rows for item in self.of("rows"))}
        segments = self.of("segment")
        return {**counts, "segments": len(segments)} if segments else counts

    @property
    def risk(self) -> Risk:
        """What it puts at stake: nothing goes, and what was released can be taken out and held again."""
        return Risk(irreversible=False)


REGISTER: Final = ItemRegister(TABLE, Release, Item)


def released_partitions(tables: "Tables") -> set[tuple[str, date, str]]:
    """Return the partitions (table, date, digest of files) that applied releases let go on."""
    return {
        (item.table, item.partition_date, item.content_sha256)
        for release in REGISTER.applied(tables)
        for item in release.of("partition")
    }


RELEASES: Final = ProposalKind(
    noun="release",
    action="release",
    command="ranklake quality release",
    register=lambda lake: REGISTER.read(lake.tables),
    add_approval=lambda lake, release, by: REGISTER.add_approval(lake.tables, release, by),
)
"""Releases as proposals: `ranklake.retention.proposals.lifecycle` approves and applies them."""


REJECTS: Final = "rejects"
Where = tuple[str, date, str]
"""Of rows in `REJECTS`: the table they were meant for, the date on which they were taken out, and the reason."""


def verify_release(lake: "Lake", plan: "Plan") -> None:
    """Check that the rows that go back are those that somebody approved, by their keys, with the values they had."""
    verify_approved(lake, plan, RELEASES, TABLE, "release", lambda release: _is_as_approved(lake, plan, release))


def _is_as_approved(lake: "Lake", plan: "Plan", approved: Release) -> bool:
    agreed = {(item.table, item.partition_date, item.about): item for item in approved.of("rows")}
    tables = {table for table in plan.body["account"] if table != REJECTS}
    if tables != {table for table, _, _ in agreed}:
        return False
    texts = _taken_out(lake, plan)
    if texts is None or set(texts) != set(agreed):
        return False
    freed: dict[str, Counter[str]] = defaultdict(Counter)
    for where, lines in texts.items():
        rows = _rows(lake.catalog, where[0], lines)
        if rows is None or (rows.num_rows, keys_sha256(rows)) != (agreed[where].rows, agreed[where].content_sha256):
            return False
        freed[where[0]] += _count_rows(rows)
    waiting = [table for table in tables if not is_committed_in(lake.store, table, plan.number)]
    return all(_brought(lake, plan, table) == freed[table] for table in waiting)


def _taken_out(lake: "Lake", plan: "Plan") -> dict[Where, list[str]] | None:
    """Return the rows that leave `REJECTS`, as text; None where one comes there.

    Also when that was committed already: the files lie there until upkeep, which finishes plans first.
    """
    known = lake.contract(REJECTS)
    gone: Counter[tuple[Any, ...]] = Counter()
    removed, added = plan.body["remove"].get(REJECTS, []), [row for row in plan.body["add"] if row["table"] == REJECTS]
    names = [column.name for column in known.columns]
    for side, sign in ((removed, 1), (added, -1)):
        for _, rows in read_some(lake.tables, known, named_files(side)):
            for row in zip(*(rows[name].to_pylist() for name in names), strict=True):
                gone[row] += sign
    if min(gone.values(), default=0) < 0:
        return None
    texts: dict[Where, list[str]] = defaultdict(list)
    for row in gone.elements():
        values = dict(zip(names, row, strict=True))
        texts[values["table"], values["date"], values["reason"]].append(values["row"])
    return texts


def _rows(catalog: "Catalog", table: str, texts: Sequence[str]) -> pa.Table | None:
    """Return rows of a table from their texts; None where one is none of it, or the table has no such keys."""
    known = catalog.contracts().get(table)
    values = [] if known is None else [row_values(known, text) for text in texts]
    if known is None or None in values or not {*RECORDED_KEY} <= {column.name for column in known.columns}:
        return None
    return pa.Table.from_pylist(values, schema=arrow_schema(known))


def _brought(lake: "Lake", plan: "Plan", table: str) -> Counter[str]:
    files = named_files([row for row in plan.body["add"] if row["table"] == table])
    counts = (_count_rows(rows) for _, rows in read_some(lake.tables, lake.contract(table), files))
    return sum(counts, Counter[str]())


def _count_rows(rows: pa.Table) -> Counter[str]:
    return Counter(json.dumps(row, default=str, sort_keys=True) for row in rows.to_pylist())


_RESULTS: Final = "quality_results"
_PLACE: Final = ("table", "partition_date")
_WHY: Final = ("check_id", "severity", "rows_failed", "message", "files_sha256", "check_run")


@dataclass(frozen=True, slots=True)
class Hold:
    """A partition that is held back.

    Attributes
    ----------
    files_sha256
        Digest of its files as the check left them.
    checks
        Ids of the checks that hold it, in order.
    severity
        The worst of theirs.
    rows_failed
        The most rows that one of them found.
    since
        When they last did.
    """

    table: str
    partition_date: date
    files_sha256: str
    checks: tuple[str, ...]
    severity: str
    rows_failed: int
    since: datetime

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "table": self.table,
            "partition_date": self.partition_date.isoformat(),
            "checks": list(self.checks),
            "severity": self.severity,
            "rows_failed": self.rows_failed,
            "found": self.since.isoformat(),
            "files_sha256": self.files_sha256,
        }


def held_partitions(tables: "Tables") -> set[tuple[str, date]]:
    """Return table and date of the partitions that are held back now."""
    return {(hold.table, hold.partition_date) for hold in holds(tables)}


def holds(tables: "Tables") -> list[Hold]:
    """Return the partitions that are held back now, by table and date."""
    results = read(tables, contract(_RESULTS), [*_PLACE, "ts", "date", "status", "on_fail"])
    failed = results.filter((pc.field("status") == "failed") & (pc.field("on_fail") == "hold"))
    if not failed.num_rows:
        return []
    last = results.group_by(list(_PLACE)).aggregate([("ts", "max")]).rename_columns([*_PLACE, "ts"])
    standing = failed.select([*_PLACE, "ts", "date"]).join(last, [*_PLACE, "ts"], join_type="inner")
    if not standing.num_rows:
        return []
    rows = read(
        tables,
        contract(_RESULTS),
        [*_PLACE, *_WHY, "ts", "status", "on_fail"],
        partitions=pc.unique(standing["date"]).to_pylist(),
    )
    rows = rows.filter((pc.field("status") == "failed") & (pc.field("on_fail") == "hold"))
    rows = rows.join(last, [*_PLACE, "ts"], join_type="inner")
    return _unreleased_rows(tables, rows)


def _unreleased_rows(tables: "Tables", rows: pa.Table) -> list[Hold]:
    free = released_partitions(tables)
    by_place: dict[tuple[str, date, str], list[dict[str, Any]]] = {}
    for row in rows.to_pylist():
        place = (row["table"], row["partition_date"], row["files_sha256"])
        if place not in free:
            by_place.setdefault(place, []).append(row)
    return [
        Hold(
            *place,
            checks=tuple(sorted({row["check_id"] for row in some})),
            severity=min((row["severity"] for row in some), key=SEVERITIES.index),
            rows_failed=max(row["rows_failed"] or 0 for row in some),
            since=some[0]["ts"],
        )
        for place, some in sorted(by_place.items())
    ]
