"""The register of erasures, which is the table ``erasures``, and the check of a plan that applies an erasure.

An erasure's name is a digest of its items and is verified on every read, as for a retention plan. The only information
about the person is a slow digest of the values. Somebody who has the values can check whether they are the erased ones.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.errors import UnknownTableError
from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.action_plan import QUARANTINED
from ranklake.lake.plans.rules import REPLACED
from ranklake.lake.plans.verification import (
    is_committed_in,
    named_files,
    no_file,
    refusal,
)
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.order import digest_of_files, digest_text, key_columns
from ranklake.lake.tables.tables import delta_table
from ranklake.retention.proposals.approvals import verify_approved
from ranklake.retention.proposals.kept import kept_plans
from ranklake.retention.proposals.proposals import ProposalKind, Risk
from ranklake.retention.proposals.registers import ItemizedProposal, ItemRegister

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables


TABLE: Final = "erasures"
CERTIFIED: Final = "erasure.certified"
"""Action of an audit row: everything was searched again, and a certificate with the result was written."""
_COLUMNS: Final = re.compile(r"as all that a column ([\w, ]+) holds")
"""The columns in the text that describes short values (`ranklake.retention.erasure.subject.Subject.rule`)."""
SUBJECT, ROWS, NAMES, RAW, SEGMENT, FILES, STAYS = "subject", "rows", "names", "raw", "segment", "files", "stays"


@dataclass(frozen=True, slots=True)
class Item:
    """A place with data of the person.

    Attributes
    ----------
    place
        ``subject``: the person, by digest. ``rows``: rows of a partition. ``names``: rows of ``segments`` whose names
        become pseudonyms. ``raw``: bytes in quarantine. ``segment``: slot files of a process, whose copies in the spool
        are deleted. ``files``: files of a kind. ``stays``: data that an erasure leaves in place, with the reason.
    table, partition_date
        The partition; None if the place has none.
    about
        The bytes, the slot file, or the kind of files. For files with a table: the keys of the subject and its columns.
    rows, files
        Number of rows and files.
    content_sha256
        Digest of the keys of the rows. None for derived tables, since these may be computed again before the erasure is
        applied. For the subject: the digest of its values.
    """

    place: str
    table: str | None = None
    partition_date: date | None = None
    about: str | None = None
    rows: int = 0
    files: int = 0
    content_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Erasure(ItemizedProposal[Item]):
    """A proposal to erase a person's data, or a run's."""

    prefix: ClassVar[str] = "er"
    item_kind: ClassVar[str] = "place"
    noun: ClassVar[str] = "erasure"

    @property
    def subject_sha256(self) -> str:
        """Slow digest of the person's values."""
        return next((item.content_sha256 or "" for item in self.of(SUBJECT)), "")

    @property
    def to_apply(self) -> str:
        """The command that applies the erasure; a word in capitals marks the values to fill in."""
        about = next((item.about or "" for item in self.of(SUBJECT)), "")
        if about.startswith("run"):
            return f"ranklake erase apply {self.name} --run RUN"
        columns = _COLUMNS.search(about)
        options = "".join(f" --column {name}" for name in (columns[1].split(", ") if columns else ()))
        return f"ranklake erase apply {self.name} -{options}"

    @property
    def rows(self) -> int:
        """Rows that are erased."""
        return sum(item.rows for item in self.of(ROWS))

    @property
    def facts(self) -> dict[str, Any]:
        """Details of its audit rows for approval and begin."""
        places = {place: len(self.of(place)) for place in (ROWS, NAMES, RAW, SEGMENT, FILES, STAYS) if self.of(place)}
        return {"rows": self.rows, "items": places, "subject_sha256": self.subject_sha256}

    @property
    def outcome(self) -> dict[str, Any]:
        """Details of its audit row after the application."""
        return {"rows": self.rows}

    @property
    def risk(self) -> Risk:
        """The retention classes of its tables; an erasure cannot be undone."""
        tables = {item.table for item in self.of(ROWS, FILES) if item.table}
        return Risk(classes=frozenset(name for table in tables if (name := _class_of(table))))


def _class_of(table: str) -> str:
    try:
        return contract(table).retention
    except UnknownTableError:  # a table of an operator's overlay
        return ""


REGISTER: Final = ItemRegister(TABLE, Erasure, Item)


def erased_raw(tables: "Tables") -> set[str]:
    """Return the digests of the raw bytes in quarantine that applied erasures deleted."""
    return {item.about or "" for erasure in REGISTER.applied(tables) for item in erasure.of(RAW)}


ERASURES: Final = ProposalKind(
    noun="erasure",
    action="erasure",
    command="ranklake erase",
    register=lambda lake: REGISTER.read(lake.tables),
    add_approval=lambda lake, erasure, by: REGISTER.add_approval(lake.tables, erasure, by),
)
"""Erasures as proposals: `ranklake.retention.proposals.lifecycle` approves and applies them."""


NAMED: Final = "segments"
NAME_COLUMNS: Final = ("run", "uri_name", "pack")
"""Columns of `NAMED` that contain names of runs."""


def verify_erasure(lake: "Lake", plan: "Plan") -> None:
    """Check, by keys, that a plan removes exactly the approved rows. Raises `RefusedPlanError`."""
    verify_approved(lake, plan, ERASURES, TABLE, "erase", lambda erasure: _is_as_approved(lake, plan, erasure))
    _verify_replaced(lake.tables, plan)


def _verify_replaced(tables: "Tables", plan: "Plan") -> None:
    """Check that replacement files replace only kept files, and have no more rows than these."""
    replaced = plan.body["facts"].get(REPLACED, {})
    kept_file_rows = {
        (file.table, file.path): file.rows
        for kept_plan in (kept_plans(tables) if replaced else ())
        for file in kept_plan.files
    }
    for table, replacements in replaced.items():
        for replacement in replacements:
            rows = sum(file["num_records"] for file in replacement["by"])
            if rows > kept_file_rows.get((table, replacement["path"]), -1):
                raise refusal(
                    tables.store, plan, f"the plan would put a file in the place of one that is not kept: {table}"
                )
            for file in replacement["by"]:
                path = tables.store.path("tables", table, file["path"])
                if not tables.store.fs.exists(path):
                    raise no_file(tables.store, plan, path)


def _is_as_approved(lake: "Lake", plan: "Plan", approved: Erasure) -> bool:
    items = {(item.place, item.table, item.partition_date): item for item in approved.of(ROWS, NAMES)}
    for table in sorted(plan.body["remove"]):
        if is_committed_in(lake.store, table, plan.number):  # checked before the commit; the files may be deleted
            continue
        for day, (removed, added) in _by_date(plan, table).items():
            derived = lake.contract(table).kind == "derived"
            item = items.get((NAMES if table == NAMED else ROWS, table, None if derived else day))
            if item is None and not _has_same_rows(lake, table, removed, added):
                return False
            if item is not None and not _has_keys(lake, table, removed, added, item.content_sha256, item.rows):
                return False
    by_table = plan.body["facts"].get(QUARANTINED, {}).values()
    planned_raw = {digest for by_date in by_table for digests in by_date.values() for digest in digests}
    approved_raw = {item.about or "" for item in approved.of(RAW)}
    missing_raw = approved_raw - planned_raw
    if not planned_raw <= approved_raw or any(lake.fs.exists(lake.path("quarantine", name)) for name in missing_raw):
        return False
    planned = {(table, date.fromisoformat(row["date"])) for table, rows in plan.body["remove"].items() for row in rows}
    unplanned = [
        item for item in remaining_items(lake.store, approved) if (item.table, item.partition_date) not in planned
    ]
    return all(is_committed_in(lake.store, item.table or "", plan.number) for item in unplanned)


def remaining_items(store: "Store", approved: Erasure) -> Iterator[Item]:
    """Yield the items of recorded tables whose partition still has at least as many rows as the item.

    Only the person's values show which rows are meant, and the lake does not store these values. An item that another
    action removed therefore makes the application void (`ranklake.retention.erasure.apply`), and a plan must not leave
    out a remaining item.
    """
    by_table: dict[str, list[Item]] = {}
    for item in approved.of(ROWS, NAMES):
        if item.content_sha256 is not None and item.partition_date is not None:  # derived tables may be computed again
            by_table.setdefault(item.table or "", []).append(item)
    for table, items in by_table.items():
        handle = delta_table(store, table)
        if handle is None:
            continue
        live = files(handle)
        for item in items:
            partition = live.filter(pc.equal(live["date"], pa.scalar(item.partition_date, pa.date32())))
            if (pc.sum(partition["num_records"]).as_py() or 0) >= item.rows:
                yield item


def _by_date(plan: "Plan", table: str) -> Mapping[date, tuple[list[Any], list[Any]]]:
    by_date: dict[date, tuple[list[Any], list[Any]]] = {}
    for row in plan.body["remove"][table]:
        by_date.setdefault(date.fromisoformat(row["date"]), ([], []))[0].append(row)
    for row in plan.body["add"]:
        if row["table"] == table:
            by_date.setdefault(date.fromisoformat(row["partition"]), ([], []))[1].append(row)
    return by_date


def _has_same_rows(lake: "Lake", table: str, removed: Sequence[Any], added: Sequence[Any]) -> bool:
    """Whether files are rewritten with the same rows, only to remove the person's values from Parquet dictionaries."""
    table_contract = lake.contract(table)
    columns = [column.name for column in table_contract.columns]
    before, after = (
        digest_of_files(lake.tables, table_contract, named_files(rows), columns) for rows in (removed, added)
    )
    return before == after


def _has_keys(
    lake: "Lake", table: str, removed: Sequence[Any], added: Sequence[Any], expected: str | None, rows: int
) -> bool:
    """Whether rewritten files lose exactly the rows whose keys have the expected digest."""
    table_contract = lake.contract(table)
    if expected is None:  # a derived table may have been computed again since the proposal
        return table_contract.kind == "derived"
    columns = key_columns(table_contract, NAME_COLUMNS if table == NAMED else ())
    before, after = (
        digest_of_files(lake.tables, table_contract, named_files(files), columns) for files in (removed, added)
    )
    lost_rows = sum(row["num_records"] for row in removed) - sum(row["rows"] for row in added)
    if table == NAMED:  # names become pseudonyms; no row is removed
        return before == after and lost_rows == 0
    return digest_text(before - after) == expected and lost_rows == rows
