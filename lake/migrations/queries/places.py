"""Where in a SELECT a column stands, which decides what an engine takes its name for."""

from dataclasses import dataclass
from typing import Any, Final

from sqlglot import exp

from ranklake.lake.migrations.queries.references import Reading, Reference

_CLAUSES: Final = {"expressions": "select", "group": "group", "order": "order", "having": "having", "qualify": "having"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a column stands.

    Attributes
    ----------
    clause
        ``select``, ``group``, ``order``, ``having``, or ``where`` for the rest.
    outputs
        What the SELECT calls its columns.
    is_item
        Whether it is a whole column of the SELECT, without an alias, which gives its name to the outside.
    is_unnamed
        Whether it is part of such a column that is computed.
    is_output
        Whether the name is that of a column that the SELECT gives, and stays.
    what
        Why nobody can tell; else empty.
    """

    clause: str
    outputs: frozenset[str]
    is_item: bool = False
    is_unnamed: bool = False
    is_output: bool = False
    what: str = ""


def place_of(ref: Reference, reading: Reading) -> Place:
    """Return where a column stands in its SELECT."""
    select = ref.scope.expression
    if not isinstance(select, exp.Select):
        return Place("where", frozenset())
    item, key = ref.node, ref.node.arg_key
    while item.parent is not select:
        item, key = item.parent, item.parent.arg_key
    clause = _CLAUSES.get(key, "where")
    outputs = frozenset(one.alias_or_name.lower() for one in select.expressions)
    if clause == "select":
        is_named = isinstance(item, exp.Alias) or not _is_seen(select)
        is_item = item is ref.node
        return Place(clause, outputs, is_item, not is_named and not is_item)
    if clause in {"order", "having"} and not ref.node.table and ref.name in outputs:
        return _among_outputs(ref, reading, clause, outputs)
    return Place(clause, outputs)


def _among_outputs(ref: Reference, reading: Reading, clause: str, outputs: frozenset[str]) -> Place:
    """Return the place of a name that is both the table's and one of what the SELECT gives."""
    select = ref.scope.expression
    items = [one for one in select.expressions if one.alias_or_name.lower() == ref.name]
    if (
        clause == "order"
        and isinstance(ref.node.parent, exp.Ordered)
        and ref.node.parent.parent is select.args["order"]
    ):
        return Place(clause, outputs, is_output=True)
    if all(_is_same(one, ref, reading) for one in items):
        inner = _in_aggregate(ref.node, select) or clause == "having"
        return Place(clause, outputs, is_output=not inner)
    aggregated = all(one.find(exp.AggFunc) is not None for one in items)
    if aggregated and _in_aggregate(ref.node, select):
        return Place(clause, outputs)
    grouped = select.args.get("group")
    is_key = grouped is not None and any(
        one.name.lower() == ref.name for one in grouped.expressions if isinstance(one, exp.Column)
    )
    if aggregated and not is_key:
        return Place(clause, outputs, is_output=True)
    return Place(
        clause, outputs, what=f"{ref.name} is a column of the table and an alias; engines differ on which counts"
    )


def _is_same(item: Any, ref: Reference, reading: Reading) -> bool:  # noqa: ANN401 - sqlglot's
    """Say whether what a SELECT gives is the very column."""
    inner = item.this if isinstance(item, exp.Alias) else item
    return any(other.node is inner and (other.name, other.home) == (ref.name, ref.home) for other in reading.references)


def _in_aggregate(node: Any, select: Any) -> bool:  # noqa: ANN401 - likewise
    around = node.find_ancestor(exp.AggFunc, exp.AnonymousAggFunc, exp.Window, exp.Select)
    return around is not None and around is not select


def _is_seen(select: Any) -> bool:  # noqa: ANN401 - likewise
    """Say whether somebody sees what a SELECT calls its columns."""
    parent = select.parent
    while isinstance(parent, exp.Subquery) and parent.arg_key not in {"from_", "joins"} and not parent.alias:
        parent = parent.parent
    return not isinstance(parent, exp.In | exp.Exists | exp.Binary | exp.Func | exp.Alias | exp.Select | exp.Unary)
