"""Registers of proposals: tables whose rows are proposals, their items, approvals and applications."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.ledger import append_own
from ranklake.lake.plans.plan import last_finished
from ranklake.lake.store.reachability import LakeError
from ranklake.lake.tables.read import read
from ranklake.retention.proposals.proposals import Some

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from ranklake.lake.store.store import Lake

RowKind = Literal["proposal", "item", "approval", "application"]
Row = Mapping[str, Any]
AnyItem = TypeVar("AnyItem", bound="DataclassInstance")
Register = Callable[["Lake"], Mapping[str, Some]]


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


def gathered(
    lake: "Lake", table: str, key: str, empty: Callable[[str], Some], with_item: Callable[[Some, Row], Some]
) -> dict[str, Some]:
    """Return every proposal of a register by name, oldest first.

    One is applied when the lake's plan that applies it is finished, not when its row appears.

    Parameters
    ----------
    table, key
        The register, and its column that names proposals.
    empty, with_item
        Make a proposal without items, and one that has a row's item, too.
    """
    rows = rows_of(lake, table)
    if not rows:  # then a ledger of newer software need not be understood
        return {}
    finished = last_finished(lake)
    found: dict[str, Some] = {}
    for row in sorted(rows, key=lambda row: (row["row_kind"] != "proposal", row["ts"])):
        known = found.setdefault(row[key], empty(row[key]))
        if row["row_kind"] == "proposal":
            found[row[key]] = replace(known, proposed=row["ts"])
        elif row["row_kind"] == "item":
            found[row[key]] = with_item(known, row)
        elif row["row_kind"] == "approval":
            found[row[key]] = replace(known, approved=row["ts"], approver=row["actor"])
        elif row["row_kind"] == "application" and row["plan"] is not None and row["plan"] <= finished:
            alone = bool(row["single_operator"])
            found[row[key]] = replace(known, applied=row["ts"], plan=row["plan"], single_operator=alone)
    return found


def rows_of(lake: "Lake", table: str) -> list[Row]:
    """Return the rows of a register. Raises `ForgedRegisterError` where one lacks what every row has."""
    known = contract(table)
    rows: list[Row] = read(lake, known).to_pylist()
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


def write_once(
    lake: "Lake",
    table: str,
    register: Callable[["Lake"], Mapping[str, Some]],
    name: str,
    rows: Iterable[dict[str, Any]],
) -> None:
    """Write a proposal and its items into a register, unless it stands there."""
    some = list(rows)
    append_own(lake, table, lambda _: [] if name in register(lake) else stamped(some))


def write_approval(lake: "Lake", table: str, register: Register[Some], name: str, row: dict[str, Any]) -> bool:
    """Write an approval into a register; return False if one stands there already."""

    def compose(_: object) -> list[dict[str, Any]]:
        known = register(lake).get(name)
        return [] if known is not None and known.approved is not None else stamped([row])

    return append_own(lake, table, compose) > 0


def stamped(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with the time of now."""
    when = datetime.now(UTC)
    return [{**row, "ts": when, "date": when.date()} for row in rows]
