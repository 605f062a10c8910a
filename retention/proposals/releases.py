"""The register of releases, which is the table ``quality_releases``, and the partitions that checks hold back.

A release lets held partitions continue and returns rows from quarantine. Its name is a digest of its items and is
verified on every read, as for a retention plan.
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
    """A partition, rows or a segment that a release lets continue.

    Attributes
    ----------
    item_kind
        ``partition``: rollups may read it. ``rows``: they move from ``rejects`` to their table. ``segment``: the next
        ingest validates it again.
    table, partition_date
        The partition. For rows, the date of ``rejects`` on which they were set aside. For a segment, the date on which
        it was refused.
    about
        For a partition, the checks that hold it. For rows, the reason in ``rejects``. For a segment, the reason and the
        segment's name.
    rows
        Number of rows.
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
    """A proposal to release partitions, rows and segments."""

    prefix: ClassVar[str] = "qr"
    item_kind: ClassVar[str] = "item_kind"
    noun: ClassVar[str] = "release"

    @property
    def facts(self) -> dict[str, Any]:
        """Details of its audit rows."""
        counts = {"partitions": len(self.of("partition")), "rows": sum(item.rows for item in self.of("rows"))}
        segments = self.of("segment")
        return {**counts, "segments": len(segments)} if segments else counts

    @property
    def risk(self) -> Risk:
        """No risk of loss: released rows can be set aside again, and partitions can be held again."""
        return Risk(irreversible=False)


REGISTER: Final = ItemRegister(TABLE, Release, Item)


def released_partitions(tables: "Tables") -> set[tuple[str, date, str]]:
    """Return the partitions (table, date, digest of files) that applied releases contain."""
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
"""Key of rows in `REJECTS`: the table they were meant for, the date on which they were set aside, and the reason."""


def verify_release(lake: "Lake", plan: "Plan") -> None:
    """Check that a plan returns exactly the approved rows, by their keys, with unchanged values."""
    verify_approved(lake, plan, RELEASES, TABLE, "release", lambda release: _is_as_approved(lake, plan, release))


def _is_as_approved(lake: "Lake", plan: "Plan", approved: Release) -> bool:
    items = {(item.table, item.partition_date, item.about): item for item in approved.of("rows")}
    tables = {table for table in plan.body["account"] if table != REJECTS}
    if tables != {table for table, _, _ in items}:
        return False
    texts = _released_texts(lake, plan)
    if texts is None or set(texts) != set(items):
        return False
    expected: dict[str, Counter[str]] = defaultdict(Counter)
    for key, lines in texts.items():
        rows = _rows(lake.catalog, key[0], lines)
        if rows is None or (rows.num_rows, keys_sha256(rows)) != (items[key].rows, items[key].content_sha256):
            return False
        expected[key[0]] += _count_rows(rows)
    uncommitted = [table for table in tables if not is_committed_in(lake.store, table, plan.number)]
    return all(_added_rows(lake, plan, table) == expected[table] for table in uncommitted)


def _released_texts(lake: "Lake", plan: "Plan") -> dict[Where, list[str]] | None:
    """Return the rows that a plan removes from `REJECTS`, as text; None if the plan adds a row there.

    Works after the commit, too: the old files exist until the next upkeep, which finishes plans first.
    """
    table_contract = lake.contract(REJECTS)
    difference: Counter[tuple[Any, ...]] = Counter()
    removed, added = plan.body["remove"].get(REJECTS, []), [row for row in plan.body["add"] if row["table"] == REJECTS]
    names = [column.name for column in table_contract.columns]
    for side, sign in ((removed, 1), (added, -1)):
        for _, rows in read_some(lake.tables, table_contract, named_files(side)):
            for row in zip(*(rows[name].to_pylist() for name in names), strict=True):
                difference[row] += sign
    if min(difference.values(), default=0) < 0:
        return None
    texts: dict[Where, list[str]] = defaultdict(list)
    for row in difference.elements():
        values = dict(zip(names, row, strict=True))
        texts[values["table"], values["date"], values["reason"]].append(values["row"])
    return texts


def _rows(catalog: "Catalog", table: str, texts: Sequence[str]) -> pa.Table | None:
    """Return the rows of a table in texts; None if a text is invalid or the table lacks the columns `RECORDED_KEY`."""
    table_contract = catalog.contracts().get(table)
    if table_contract is None or not {*RECORDED_KEY} <= {column.name for column in table_contract.columns}:
        return None
    values = [row_values(table_contract, text) for text in texts]
    return None if None in values else pa.Table.from_pylist(values, schema=arrow_schema(table_contract))


def _added_rows(lake: "Lake", plan: "Plan", table: str) -> Counter[str]:
    files = named_files([row for row in plan.body["add"] if row["table"] == table])
    counts = (_count_rows(rows) for _, rows in read_some(lake.tables, lake.contract(table), files))
    return sum(counts, Counter[str]())


def _count_rows(rows: pa.Table) -> Counter[str]:
    return Counter(json.dumps(row, default=str, sort_keys=True) for row in rows.to_pylist())


_RESULTS: Final = "quality_results"
_PLACE: Final = ("table", "partition_date")
_FAILURE: Final = ("check_id", "severity", "rows_failed", "message", "files_sha256", "check_run")


@dataclass(frozen=True, slots=True)
class Hold:
    """A partition that is held back from rollups because checks failed.

    Attributes
    ----------
    files_sha256
        Digest of the partition's files when the checks ran.
    checks
        Ids of the failed checks, sorted.
    severity
        The highest severity of these checks.
    rows_failed
        The highest number of failed rows of these checks.
    since
        Time of the last run of the checks.
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
    """Return table and date of each partition that is held back now."""
    return {(hold.table, hold.partition_date) for hold in holds(tables)}


def holds(tables: "Tables") -> list[Hold]:
    """Return the partitions that are held back now, sorted by table and date."""
    results = read(tables, contract(_RESULTS), [*_PLACE, "ts", "date", "status", "on_fail"])
    failed = results.filter((pc.field("status") == "failed") & (pc.field("on_fail") == "hold"))
    if not failed.num_rows:
        return []
    last = results.group_by(list(_PLACE)).aggregate([("ts", "max")]).rename_columns([*_PLACE, "ts"])
    current = failed.select([*_PLACE, "ts", "date"]).join(last, [*_PLACE, "ts"], join_type="inner")
    if not current.num_rows:
        return []
    rows = read(
        tables,
        contract(_RESULTS),
        [*_PLACE, *_FAILURE, "ts", "status", "on_fail"],
        partitions=pc.unique(current["date"]).to_pylist(),
    )
    rows = rows.filter((pc.field("status") == "failed") & (pc.field("on_fail") == "hold"))
    rows = rows.join(last, [*_PLACE, "ts"], join_type="inner")
    return _unreleased_holds(tables, rows)


def _unreleased_holds(tables: "Tables", rows: pa.Table) -> list[Hold]:
    released = released_partitions(tables)
    by_place: dict[tuple[str, date, str], list[dict[str, Any]]] = {}
    for row in rows.to_pylist():
        place = (row["table"], row["partition_date"], row["files_sha256"])
        if place not in released:
            by_place.setdefault(place, []).append(row)
    return [
        Hold(
            *place,
            checks=tuple(sorted({row["check_id"] for row in failures})),
            severity=min((row["severity"] for row in failures), key=SEVERITIES.index),
            rows_failed=max(row["rows_failed"] or 0 for row in failures),
            since=failures[0]["ts"],
        )
        for place, failures in sorted(by_place.items())
    ]
