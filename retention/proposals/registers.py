"""Registers of proposals: tables whose rows are proposals, their items, approvals and applications.

A proposal's name is a digest of its items, computed again whenever it is read. Whoever changes an item makes another
proposal of it, which nobody approved.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar

from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.plan import append_own, last_finished
from ranklake.lake.store.reachability import LakeError
from ranklake.lake.tables.read import read
from ranklake.retention.proposals.proposals import Proposal, digest_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from ranklake.lake.store.tables import Tables

RowKind = Literal["proposal", "item", "approval", "application"]
Row = Mapping[str, Any]
AnyItem = TypeVar("AnyItem", bound="DataclassInstance")


class ForgedRegisterError(LakeError):
    """A register of proposals has a row that no command writes. Nothing was changed.

    Attributes
    ----------
    table, column
        The register, and what the row lacks.
    """

    def __init__(self, table: str, column: str) -> None:
        self.table, self.column = table, column
        hint = "find out who wrote it, and restore the table; 'ranklake audit verify' says what the trail has"
        super().__init__(f"a row lacks {column}, so it was not written by a command", where=table, hint=hint)


@dataclass(frozen=True, slots=True)
class ItemizedProposal(Proposal, Generic[AnyItem]):
    """A proposal that is named by a digest of its items.

    Attributes
    ----------
    prefix
        Before the digest in its name.
    item_kind
        Attribute of an item that says of which kind it is.
    noun
        Its key in plain JSON values, and the register's column that names it.
    """

    items: tuple[AnyItem, ...]

    prefix: ClassVar[str]
    item_kind: ClassVar[str]
    noun: ClassVar[str]

    @property
    def items_sha256(self) -> str:
        """Digest of all that its items say."""
        return digest_of(asdict(item) for item in self.items)

    @classmethod
    def of_items(cls, items: Iterable[AnyItem]) -> Self:
        """Return the proposal of some items, under their name."""
        made = cls("", tuple(items))
        return replace(made, name=made.own_name)

    @property
    def own_name(self) -> str:
        """The name that its items stand for."""
        return f"{self.prefix}-{self.items_sha256[:16]}"

    @property
    def intact(self) -> bool:
        """Whether its items are those that its name stands for."""
        return self.name == self.own_name

    @property
    def rows(self) -> int:
        """Rows of all its items."""
        return sum(item.rows for item in self.items)  # type: ignore[attr-defined]

    @property
    def outcome(self) -> Mapping[str, Any]:
        """What the trail says when it was applied."""
        return self.facts

    def of(self, *kinds: str) -> tuple[AnyItem, ...]:
        """Return its items of some kinds."""
        return tuple(item for item in self.items if getattr(item, self.item_kind) in kinds)

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        rows = map(asdict, self.items)
        items = [
            {**row, "partition_date": None if row["partition_date"] is None else str(row["partition_date"])}
            for row in rows
        ]
        head = {self.noun: self.name, "state": self.state, "single_operator": self.single_operator, "plan": self.plan}
        return {**head, **self.facts, **self.times, "items": items}


Itemized = TypeVar("Itemized", bound=ItemizedProposal[Any])


@dataclass(frozen=True, slots=True)
class ItemRegister(Generic[Itemized]):
    """The register of one kind of itemized proposals.

    Attributes
    ----------
    table
        Its table.
    proposal, item
        Classes of a proposal and of an item; fields of an item are columns of the table.
    """

    table: str
    proposal: type[Itemized]
    item: "type[DataclassInstance]"

    def read(self, tables: "Tables") -> dict[str, Itemized]:
        """Return every proposal by name, oldest first.

        One is applied when the lake's plan that applies it is finished, not when its row appears.
        """
        rows = register_rows(tables, self.table)
        if not rows:  # then a ledger of newer software need not be understood
            return {}
        finished = last_finished(tables)
        proposals: dict[str, Itemized] = {}
        for row in sorted(rows, key=lambda row: (row["row_kind"] != "proposal", row["ts"])):
            name = row[self.proposal.noun]
            known = proposals.setdefault(name, self.proposal(name, ()))
            if row["row_kind"] == "proposal":
                proposals[name] = replace(known, proposed=row["ts"])
            elif row["row_kind"] == "item":
                proposals[name] = replace(known, items=(*known.items, item_of(self.table, self.item, row)))
            elif row["row_kind"] == "approval":
                proposals[name] = replace(known, approved=row["ts"], approver=row["actor"])
            elif row["row_kind"] == "application" and row["plan"] is not None and row["plan"] <= finished:
                alone = bool(row["single_operator"])
                proposals[name] = replace(known, applied=row["ts"], plan=row["plan"], single_operator=alone)
        return {name: replace(one, items=tuple(sorted(one.items, key=self._order))) for name, one in proposals.items()}

    def applied(self, tables: "Tables") -> Iterator[Itemized]:
        """Yield the proposals that were applied as they were approved."""
        return (proposal for proposal in self.read(tables).values() if proposal.applied is not None and proposal.intact)

    def _order(self, item: Any) -> tuple[str, ...]:  # noqa: ANN401 - an item of the register's class
        kind = getattr(item, self.proposal.item_kind)
        return (kind, item.table or "", str(item.partition_date or ""), item.about or "")

    def add(
        self, tables: "Tables", items: Iterable[Any], actor: str | None = None, reason: str | None = None
    ) -> Itemized:
        """Write the proposal of some items unless it exists, and return it with its state.

        Its authors are in the audit trail.
        """
        made = self.proposal.of_items(items)
        head = self.head_row(made, "proposal", actor) | ({} if reason is None else {"reason": reason})
        rows = [head, *({made.noun: made.name, "row_kind": "item", **asdict(item)} for item in made.items)]
        append_own(tables, self.table, lambda _: [] if made.name in self.read(tables) else with_time(rows))
        return self.read(tables)[made.name]

    def add_approval(self, tables: "Tables", proposal: Itemized, by: str) -> bool:
        """Write an approval down; return False if one stands there already."""

        def compose(_: object) -> list[dict[str, Any]]:
            known = self.read(tables).get(proposal.name)
            done = known is not None and known.approved is not None
            return [] if done else with_time([self.head_row(proposal, "approval", by)])

        return append_own(tables, self.table, compose) > 0

    def head_row(
        self,
        proposal: Itemized,
        kind: RowKind,
        actor: str | None,
        number: int | None = None,
        *,
        single_operator: bool = False,
    ) -> dict[str, Any]:
        """Return the row of a proposal, approval or application, without its time."""
        facts = {proposal.noun: proposal.name, "row_kind": kind, "rows": proposal.rows, "actor": actor}
        return {**facts, "plan": number, "single_operator": single_operator or None}


def register_rows(tables: "Tables", table: str) -> list[Row]:
    """Return the rows of a register. Raises `ForgedRegisterError` where one lacks what every row has."""
    known = contract(table)
    rows: list[Row] = read(tables, known).to_pylist()
    for column in known.columns:
        if column.required and any(row[column.name] is None for row in rows):
            raise ForgedRegisterError(table, column.name)
    return rows


def item_of(table: str, kind: type[AnyItem], row: Row) -> AnyItem:
    """Return an item of a proposal from its row. Raises `ForgedRegisterError` where it lacks what such an item has."""
    values = {field.name: row[field.name] for field in fields(kind)}
    for field in fields(kind):
        if values[field.name] is None and "None" not in str(field.type):
            raise ForgedRegisterError(table, field.name)
    return kind(**values)


def with_time(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with the time of now."""
    when = datetime.now(UTC)
    return [{**row, "ts": when, "date": when.date()} for row in rows]
