"""Where in a SELECT a column stands, and whether its name is that of a column there or of something selected."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlglot import exp

from ranklake.lake.migrations.queries.aliases import ALIAS, INPUT, REFUSED, has_alias, is_exact, taken
from ranklake.lake.migrations.queries.meanings import Table
from ranklake.lake.migrations.queries.references import Reading, Reference
from ranklake.lake.migrations.queries.scopes import AMBIGUOUS, NOWHERE, Home
from ranklake.lake.migrations.queries.statements import Statement
from ranklake.lake.migrations.queries.trees import PIVOT

KEPT: Final = "kept"

_CLAUSES: Final = {
    "expressions": "select",
    "windows": "select",
    "group": "group",
    "order": "order",
    "distinct": "order",
    "having": "having",
    "qualify": "qualify",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a column stands.

    Attributes
    ----------
    clause
        ``select``, ``group``, ``order``, ``order within`` an expression or ``order aggregate`` in an aggregate there,
        ``having``, ``qualify``, ``aggregate`` for one in either, or ``where`` for the rest.
    outputs
        What the SELECT calls its columns, in small letters.
    is_item
        Whether it is a whole column of the SELECT, without an alias, which gives its name to the outside.
    is_unnamed
        Whether it is part of such a column that is computed.
    """

    clause: str
    outputs: frozenset[str]
    is_item: bool = False
    is_unnamed: bool = False


def place_of(ref: Reference) -> Place:
    """Return where a column stands in its SELECT."""
    select = ref.scope.expression
    if not isinstance(select, exp.Select):
        return Place("where", frozenset())
    item, key = ref.node, ref.node.arg_key
    while item.parent is not select:
        item, key = item.parent, item.parent.arg_key
    clause = _CLAUSES.get(key, "where")
    outputs = frozenset(one.alias_or_name.lower() for one in select.expressions)
    if key == "expressions":
        is_named = isinstance(item, exp.Alias) or item.is_star or PIVOT in select.args or not _is_seen(select)
        is_item = item is ref.node
        return Place(clause, outputs, is_item, not is_named and not is_item)
    if clause == "order" and not _is_whole(ref.node, select):
        is_inner = ref.node.find_ancestor(exp.AggFunc, exp.AnonymousAggFunc, exp.Select) is not select
        clause = "order aggregate" if is_inner else "order within"
    if clause in {"having", "qualify"} and _in_aggregate(ref.node, select):
        clause = "aggregate"
    return Place(clause, outputs)


def standing(ref: Reference, place: Place, one: Statement, reading: Reading, tables: Mapping[str, Table]) -> str:
    """Return what becomes of a name that an alias has, too.

    That is `KEPT` where it means the same afterwards, "" where it is the column's and follows it, and else why nobody
    can tell.
    """
    select = ref.scope.expression
    items = [] if ref.node.table or not isinstance(select, exp.Select) else select.expressions
    aliased = {engine for engine in one.engines if has_alias(engine, ref.node.this, items)}
    if not aliased:
        return ""
    later = {name: table.versions[table.newest] for name, table in tables.items()}
    home = reading.scopes.find(ref.scope, ref.name, "", later)
    if home == ref.home and reading.meaning_of(ref.node, tables).plain == ref.name:
        return KEPT
    first, then = _keys(select, reading, tables)
    called = [item for item in items if _is_called(item, ref.name)]
    before: set[str] = set()
    after: set[str] = set()
    for engine in one.engines:
        is_alias = engine in aliased
        was = _taken(engine, place.clause, ref, ref.home, first, is_alias=is_alias)
        if place.clause == "order aggregate" and any(item.find(exp.AggFunc) is not None for item in called):
            was = {REFUSED} if is_alias and engine in {"datafusion", "trino"} else was  # an aggregate of an aggregate
        if was != {REFUSED}:
            before |= was - {REFUSED}
            after |= _taken(engine, place.clause, ref, home, then, is_alias=is_alias)
    is_same = all(_is_same(item, ref, reading) for item in called)
    if is_same or before <= {INPUT}:
        return KEPT if ALIAS in before and after == {ALIAS} else ""
    if before != {ALIAS} or len(called) > 1:
        return f"{ref.name} is a column of the table and an alias; engines differ on which counts"
    if after == {ALIAS}:
        return KEPT
    return f"{ref.name} is an alias here, and the table gets another column of this name"


def _taken(
    engine: str,
    clause: str,
    ref: Reference,
    home: Home | str,
    keys: Mapping[str, bool | None],
    *,
    is_alias: bool,
) -> set[str]:
    if home == AMBIGUOUS != ref.home and clause != "order":
        return {REFUSED}
    is_outer = isinstance(home, Home) and home.scope != id(ref.scope)
    is_input = home != NOWHERE and not is_outer and not is_exact(engine, ref.node.this)
    found = taken(engine, clause, is_input=is_input, is_alias=is_alias, is_key=keys.get(ref.name, False))
    return {INPUT} if is_outer and found == {REFUSED} else found


def _keys(
    select: Any,  # noqa: ANN401 - sqlglot's
    reading: Reading,
    tables: Mapping[str, Table],
) -> tuple[dict[str, bool | None], dict[str, bool | None]]:
    """Return whether groups are made by columns, as they are called and will be; None where that is not certain."""
    group = select.args.get("group")
    if group is None:
        return {}, {}
    before: dict[str, bool | None] = {}
    after: dict[str, bool | None] = {}
    is_certain = not any(value for key, value in group.args.items() if key != "expressions")  # ALL, CUBE, …
    for key in group.find_all(exp.Column) if is_certain else select.find_all(exp.Column):
        before[key.name.lower()] = None
        after |= dict.fromkeys(reading.meaning_of(key, tables).names)
    for column in (one for key in group.expressions for one in _columns(key, select, reading)):
        before[column.name.lower()] = True
        after |= dict.fromkeys(reading.meaning_of(column, tables).names, True)
    return before, after


def _columns(key: Any, select: Any, reading: Reading) -> Iterator[Any]:  # noqa: ANN401 - likewise
    """Yield the column that a key of GROUP BY is, by its name, its place in the SELECT, or an alias."""
    key = key.unnest()
    if isinstance(key, exp.Literal) and key.is_int and 0 < int(key.name) <= len(select.expressions):
        key = select.expressions[int(key.name) - 1].unalias()
    elif isinstance(key, exp.Column) and not key.table and reading.home_of(key) == NOWHERE:
        key = next((one.this for one in select.expressions if _is_called(one, key.name.lower())), key)
    if isinstance(key, exp.Column):
        yield key


def _is_called(item: Any, name: str) -> bool:  # noqa: ANN401 - likewise
    return bool(item.alias_or_name.lower() == name)


def _is_same(item: Any, ref: Reference, reading: Reading) -> bool:  # noqa: ANN401 - likewise
    """Say whether what a SELECT gives is the very column."""
    inner = item.unalias()
    return isinstance(inner, exp.Column) and inner.name.lower() == ref.name and reading.home_of(inner) == ref.home


def _is_whole(node: Any, select: Any) -> bool:  # noqa: ANN401 - likewise
    """Say whether rows are sorted, or told apart, by a name and not by an expression with it."""
    parent = node.parent
    while isinstance(parent, exp.Paren | exp.Tuple):
        parent = parent.parent
    return parent.parent is (select.args.get("order") if isinstance(parent, exp.Ordered) else select)


def _in_aggregate(node: Any, select: Any) -> bool:  # noqa: ANN401 - likewise
    around = node.find_ancestor(exp.AggFunc, exp.AnonymousAggFunc, exp.Window, exp.Select)
    return around is not None and around is not select


def _is_seen(select: Any) -> bool:  # noqa: ANN401 - likewise
    """Say whether somebody sees what a SELECT calls its columns."""
    parent = select.parent
    while isinstance(parent, exp.Subquery) and parent.arg_key not in {"from_", "joins"} and not parent.alias:
        parent = parent.parent
    return not isinstance(parent, exp.In | exp.Exists | exp.Binary | exp.Func | exp.Alias | exp.Select | exp.Unary)
