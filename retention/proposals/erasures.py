"""The register of erasures: whose data go, and where they are, as rows of ``erasures``.

An erasure's name is a digest of its items, and is computed again when it is read, as that of a retention plan is. It
says nothing of the person but a slow digest, so who has the values can tell whether it is about them.
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
"""Action of a row of the audit trail: everything was searched again, and a certificate says what was found."""
_COLUMNS: Final = re.compile(r"as all that a column ([\w, ]+) holds")
"""In what an erasure says of short values (`ranklake.retention.erasure.subject.Subject.rule`)."""
SUBJECT, ROWS, NAMES, RAW, SEGMENT, FILES, STAYS = "subject", "rows", "names", "raw", "segment", "files", "stays"


@dataclass(frozen=True, slots=True)
class Item:
    """Where some of the person's data are.

    Attributes
    ----------
    place
        ``subject``: whose, by digest. ``rows``: rows of a partition. ``names``: rows of ``segments`` whose names become
        pseudonyms. ``raw``: bytes in quarantine. ``segment``: slot files of a process, whose copies in the spool go.
        ``files``: files of a kind. ``stays``: what no erasure touches, and why.
    table, partition_date
        Where; None if it is of none.
    about
        Which bytes, slot file, or kind of files; files with a table are keys of the subject, and its columns.
    rows, files
        How many.
    content_sha256
        Digest of the keys of the rows; None for derived tables, which may be computed again before it is applied. Of
        the subject its digest.
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
        """Digest of whose data it is about."""
        return next((item.content_sha256 or "" for item in self.of(SUBJECT)), "")

    @property
    def to_apply(self) -> str:
        """The command that applies it, with a word in capitals where its values go."""
        about = next((item.about or "" for item in self.of(SUBJECT)), "")
        if about.startswith("run"):
            return f"ranklake erase apply {self.name} --run RUN"
        columns = _COLUMNS.search(about)
        options = "".join(f" --column {name}" for name in (columns[1].split(", ") if columns else ()))
        return f"ranklake erase apply {self.name} -{options}"

    @property
    def rows(self) -> int:
        """Rows that go, or went."""
        return sum(item.rows for item in self.of(ROWS))

    @property
    def facts(self) -> dict[str, Any]:
        """What the trail says of it."""
        places = {one: len(self.of(one)) for one in (ROWS, NAMES, RAW, SEGMENT, FILES, STAYS) if self.of(one)}
        return {"rows": self.rows, "items": places, "subject_sha256": self.subject_sha256}

    @property
    def outcome(self) -> dict[str, Any]:
        """What the trail says when it was applied."""
        return {"rows": self.rows}

    @property
    def risk(self) -> Risk:
        """What it puts at stake: rows of classes, for good, and what keys sealed."""
        tables = {item.table for item in self.of(ROWS, FILES) if item.table}
        return Risk(classes=frozenset(known for table in tables if (known := _class_of(table))))


def _class_of(table: str) -> str:
    try:
        return contract(table).retention
    except UnknownTableError:  # an operator's own
        return ""


REGISTER: Final = ItemRegister(TABLE, Erasure, Item)


def erased_raw(tables: "Tables") -> set[str]:
    """Return the digests of raw bytes in quarantine that applied erasures took."""
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
"""Columns of `NAMED` in which names of runs stand."""


def verify_erasure(lake: "Lake", plan: "Plan") -> None:
    """Check that the rows that go are those that somebody approved, all of them, by their keys; all others stay."""
    verify_approved(lake, plan, ERASURES, TABLE, "erase", lambda erasure: _is_as_approved(lake, plan, erasure))
    _verify_replaced(lake.tables, plan)


def _verify_replaced(tables: "Tables", plan: "Plan") -> None:
    """Check that files take the place of kept ones alone, and hold less than those."""
    replaced = plan.body["facts"].get(REPLACED, {})
    known = {
        (file.table, file.path): file.rows
        for kept_plan in (kept_plans(tables) if replaced else ())
        for file in kept_plan.files
    }
    for table, replacements in replaced.items():
        for replacement in replacements:
            rows = sum(file["num_records"] for file in replacement["by"])
            if rows > known.get((table, replacement["path"]), -1):
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
        if is_committed_in(lake.store, table, plan.number):  # its files may be gone; what was looked at holds
            continue
        for day, (gone, new) in _by_date(plan, table).items():
            derived = lake.contract(table).kind == "derived"
            item = items.get((NAMES if table == NAMED else ROWS, table, None if derived else day))
            if item is None and not _has_same_rows(lake, table, gone, new):
                return False
            if item is not None and not _has_keys(lake, table, gone, new, item.content_sha256, item.rows):
                return False
    planned = {
        one for days in plan.body["facts"].get(QUARANTINED, {}).values() for some in days.values() for one in some
    }
    agreed = {item.about or "" for item in approved.of(RAW)}
    if not planned <= agreed or any(lake.fs.exists(lake.path("quarantine", one)) for one in agreed - planned):
        return False
    taken = {(table, date.fromisoformat(row["date"])) for table, rows in plan.body["remove"].items() for row in rows}
    left = [item for item in still_there(lake.store, approved) if (item.table, item.partition_date) not in taken]
    return all(is_committed_in(lake.store, item.table or "", plan.number) for item in left)


def still_there(store: "Store", approved: Erasure) -> Iterator[Item]:
    """Yield items that take recorded rows, or names, of which the partition has rows enough to hold them still.

    Whose rows they are only the values tell, which the lake does not keep. So an application is void where such an item
    has gone by other ways (`ranklake.retention.erasure.apply`), and none needs to be left out of a plan.
    """
    by_table: dict[str, list[Item]] = {}
    for item in approved.of(ROWS, NAMES):
        if item.content_sha256 is not None and item.partition_date is not None:  # a derived table's may come again
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


def _has_same_rows(lake: "Lake", table: str, gone: Sequence[Any], new: Sequence[Any]) -> bool:
    """Whether files are written again as they are: no row of the subject's, but words of it in their dictionaries."""
    known = lake.contract(table)
    columns = [column.name for column in known.columns]
    before, after = (digest_of_files(lake.tables, known, named_files(some), columns) for some in (gone, new))
    return before == after


def _has_keys(
    lake: "Lake", table: str, gone: Sequence[Any], new: Sequence[Any], expected: str | None, rows: int
) -> bool:
    known = lake.contract(table)
    named = table == NAMED
    taken = sum(row["num_records"] for row in gone) - sum(row["rows"] for row in new)
    if expected is None:  # a derived table may have been computed again since
        return known.kind == "derived"
    columns = key_columns(known, NAME_COLUMNS if named else ())
    before, after = (digest_of_files(lake.tables, known, named_files(some), columns) for some in (gone, new))
    if named:
        return before == after and taken == 0
    return digest_text(before - after) == expected and taken == rows
