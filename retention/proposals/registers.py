"""Registers of proposals: tables whose rows are proposals, their items, approvals and applications.

A proposal's name is a digest of its items and is verified on every read. A proposal whose items were changed no longer
matches its name, so the approval does not hold for it.
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
    """A register has a row that ranklake did not write. Nothing was changed.

    Attributes
    ----------
    table, column
        The register, and the column that is NULL although it is required.
    """

    def __init__(self, table: str, column: str) -> None:
        self.table, self.column = table, column
        hint = "find out who wrote it, and restore the table; 'ranklake audit verify' says what the audit log has"
        super().__init__(f"a row lacks {column}, so it was not written by a command", where=table, hint=hint)


@dataclass(frozen=True, slots=True)
class ItemizedProposal(Proposal, Generic[AnyItem]):
    """A proposal whose name is a digest of its items.

    Attributes
    ----------
    prefix
        Prefix of the name, before the digest.
    item_kind
        Attribute of an item with the kind of the item.
    noun
        Key of the name in JSON output, and the register's column with the name.
    """

    items: tuple[AnyItem, ...]

    prefix: ClassVar[str]
    item_kind: ClassVar[str]
    noun: ClassVar[str]

    @property
    def items_sha256(self) -> str:
        """Digest of all fields of all items. An approval is for this digest."""
        return digest_of(asdict(item) for item in self.items)

    @classmethod
    def of_items(cls, items: Iterable[AnyItem]) -> Self:
        """Return a proposal of these items, with the name that their digest gives."""
        unnamed = cls("", tuple(items))
        return replace(unnamed, name=unnamed.own_name)

    @property
    def own_name(self) -> str:
        """The name that the digest of the items gives."""
        return f"{self.prefix}-{self.items_sha256[:16]}"

    @property
    def intact(self) -> bool:
        """Whether the items match the digest in the name."""
        return self.name == self.own_name

    @property
    def rows(self) -> int:
        """Rows of all items."""
        return sum(item.rows for item in self.items)  # type: ignore[attr-defined]

    @property
    def outcome(self) -> Mapping[str, Any]:
        """Details of its audit row after the application."""
        return self.facts

    def of(self, *kinds: str) -> tuple[AnyItem, ...]:
        """Return the items of these kinds."""
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
        Name of the register's table.
    proposal, item
        Classes of proposals and items. The fields of an item are columns of the table.
    """

    table: str
    proposal: type[Itemized]
    item: "type[DataclassInstance]"

    def read(self, tables: "Tables") -> dict[str, Itemized]:
        """Return all proposals by name, oldest first.

        A proposal is applied when the lake's plan that applies it is finished, not when its row appears.
        """
        rows = register_rows(tables, self.table)
        if not rows:  # skip the ledger: newer software may have written it
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
        return {
            name: replace(proposal, items=tuple(sorted(proposal.items, key=self._order)))
            for name, proposal in proposals.items()
        }

    def applied(self, tables: "Tables") -> Iterator[Itemized]:
        """Return the applied proposals whose items match their names."""
        return (proposal for proposal in self.read(tables).values() if proposal.applied is not None and proposal.intact)

    def _order(self, item: Any) -> tuple[str, ...]:  # noqa: ANN401 - an item of the register's class
        kind = getattr(item, self.proposal.item_kind)
        return (kind, item.table or "", str(item.partition_date or ""), item.about or "")

    def add(
        self, tables: "Tables", items: Iterable[Any], actor: str | None = None, reason: str | None = None
    ) -> Itemized:
        """Write the proposal of these items unless it exists, and return it with its state.

        The caller records the author in the audit log.
        """
        new = self.proposal.of_items(items)
        head = self.head_row(new, "proposal", actor) | ({} if reason is None else {"reason": reason})
        rows = [head, *({new.noun: new.name, "row_kind": "item", **asdict(item)} for item in new.items)]
        append_own(tables, self.table, lambda _: [] if new.name in self.read(tables) else with_time(rows))
        return self.read(tables)[new.name]

    def add_approval(self, tables: "Tables", proposal: Itemized, by: str) -> bool:
        """Write an approval into the register; return False if the register has one already."""

        def compose(_: object) -> list[dict[str, Any]]:
            registered = self.read(tables).get(proposal.name)
            is_approved = registered is not None and registered.approved is not None
            return [] if is_approved else with_time([self.head_row(proposal, "approval", by)])

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
        """Return the register's row of a proposal, approval or application, without its time."""
        facts = {proposal.noun: proposal.name, "row_kind": kind, "rows": proposal.rows, "actor": actor}
        return {**facts, "plan": number, "single_operator": single_operator or None}


def register_rows(tables: "Tables", table: str) -> list[Row]:
    """Return the rows of a register. Raises `ForgedRegisterError` if a required column is NULL in a row."""
    table_contract = contract(table)
    rows: list[Row] = read(tables, table_contract).to_pylist()
    for column in table_contract.columns:
        if column.required and any(row[column.name] is None for row in rows):
            raise ForgedRegisterError(table, column.name)
    return rows


def item_of(table: str, kind: type[AnyItem], row: Row) -> AnyItem:
    """Return a proposal's item from its row. Raises `ForgedRegisterError` if a required field is NULL in the row."""
    values = {field.name: row[field.name] for field in fields(kind)}
    for field in fields(kind):
        if values[field.name] is None and "None" not in str(field.type):
            raise ForgedRegisterError(table, field.name)
    return kind(**values)


def with_time(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with ``ts`` and ``date`` set to now."""
    when = datetime.now(UTC)
    return [{**row, "ts": when, "date": when.date()} for row in rows]
