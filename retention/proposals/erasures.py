"""The register of erasures: whose data go, and where they are, as rows of ``erasures``.

An erasure's name is a digest of its items, and is reckoned again when it is read, as that of a retention plan is. It
says nothing of the person but a slow digest, so who has the values can tell whether it is about them.
"""

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.errors import UnknownTableError
from ranklake.lake.contracts.load import contract
from ranklake.retention.proposals.proposals import Proposal, ProposalKind, Risk, digest_of
from ranklake.retention.proposals.registers import Row, RowKind, gathered, item_of, write_approval, write_once

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake

TABLE: Final = "erasures"
CERTIFIED: Final = "erasure.certified"
"""Action of a row of the audit trail: everything was searched anew, and a certificate says what was found."""
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
        Digest of the keys of the rows; None for derived tables, which may be computed anew before it is applied. Of the
        subject its digest.
    """

    place: str
    table: str | None = None
    partition_date: date | None = None
    about: str | None = None
    rows: int = 0
    files: int = 0
    content_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Erasure(Proposal):
    """A proposal to erase a person's data, or a run's; its name is a digest of its items."""

    items: tuple[Item, ...]

    @property
    def items_sha256(self) -> str:
        """Digest of all that its items say."""
        return digest_of(asdict(item) for item in self.items)

    @property
    def intact(self) -> bool:
        """Whether its items are those that its name stands for."""
        return self.name == erasure_name(self.items)

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

    def of(self, *places: str) -> tuple[Item, ...]:
        """Return its items of some places."""
        return tuple(item for item in self.items if item.place in places)

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        days = [None if item.partition_date is None else str(item.partition_date) for item in self.items]
        items = [{**asdict(item), "partition_date": day} for item, day in zip(self.items, days, strict=True)]
        head = {"erasure": self.name, "state": self.state, "single_operator": self.single_operator, "plan": self.plan}
        return {**head, **self.facts, **self.times, "items": items}


def _class_of(table: str) -> str:
    try:
        return contract(table).retention
    except UnknownTableError:  # an operator's own
        return ""


def erasure_name(items: Iterable[Item]) -> str:
    """Return the name of an erasure of these items."""
    return f"er-{digest_of(asdict(item) for item in items)[:16]}"


def register(lake: "Lake") -> dict[str, Erasure]:
    """Return every erasure by name, oldest first. One is applied when the lake's plan that applies it is finished."""

    def with_item(known: Erasure, row: Row) -> Erasure:
        return replace(known, items=(*known.items, item_of(TABLE, Item, row)))

    found = gathered(lake, TABLE, "erasure", lambda name: Erasure(name, items=()), with_item)
    return {name: replace(one, items=tuple(sorted(one.items, key=_order))) for name, one in found.items()}


def erased_raw(lake: "Lake") -> set[str]:
    """Return the digests of raw bytes in quarantine that applied erasures took."""
    return {item.about or "" for one in applied(lake) for item in one.of(RAW)}


def applied(lake: "Lake") -> Iterable[Erasure]:
    """Return the erasures that were applied as they were approved."""
    return (one for one in register(lake).values() if one.applied is not None and one.intact)


def write_down(lake: "Lake", items: Iterable[Item]) -> Erasure:
    """Write an erasure into the register, once, and return what became of it so far. Its authors are in the trail."""
    made = Erasure("", items=tuple(items))
    made = replace(made, name=erasure_name(made.items))
    told = [{"erasure": made.name, "row_kind": "item", **asdict(item)} for item in made.items]
    write_once(lake, TABLE, register, made.name, [head_row(made, "proposal", None), *told])
    return ERASURES.find(lake, made.name)


def head_row(
    erasure: Erasure, kind: RowKind, actor: str | None, number: int | None = None, *, single_operator: bool = False
) -> dict[str, Any]:
    """Return the row of a proposal, approval or application, without its time."""
    facts = {"erasure": erasure.name, "row_kind": kind, "rows": erasure.rows, "actor": actor, "plan": number}
    return {**facts, "single_operator": single_operator or None}


def _order(item: Item) -> tuple[str, ...]:
    return (item.place, item.table or "", str(item.partition_date or ""), item.about or "")


def _add_approval(lake: "Lake", erasure: Erasure, by: str) -> bool:
    return write_approval(lake, TABLE, register, erasure.name, head_row(erasure, "approval", by))


ERASURES: Final = ProposalKind(
    noun="erasure",
    action="erasure",
    command="ranklake erase",
    register=register,
    add_approval=_add_approval,
)
"""Erasures as proposals: `ranklake.retention.proposals.lifecycle` approves and applies them."""
