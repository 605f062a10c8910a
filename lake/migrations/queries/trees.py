"""Trees of sqlglot, as statements are looked at here: which are statements, and what some of them are read as."""

from typing import Any, Final

from sqlglot import exp

ABOUT: Final = frozenset(
    [
        "SHOW",
        "DESCRIBE",
        "DESC",
        "SUMMARIZE",
        "EXPLAIN",
        "PIVOT",
        "UNPIVOT",
        "COPY",
        "EXPORT",
        "TABLE",
        "PRAGMA",
        "CALL",
    ]
)
"""What statements begin with that take a table and name no column."""

PIVOT: Final = "pivot"
"""What such a SELECT says of itself: how many of its columns are those that it is pivoted on."""


def as_looked_at(tree: Any) -> Any:  # noqa: ANN401 - sqlglot's
    """Return a tree as the rest reads it: a PIVOT as a SELECT, and a WITH where its query is."""
    return _as_select(_with_inside(tree))


def _as_select(tree: Any) -> Any:  # noqa: ANN401 - likewise
    """Return a SELECT in the place of a PIVOT of a table, with the same nodes; anything else as it is."""
    if not isinstance(tree, exp.Pivot) or tree.args.get("unpivot") or not isinstance(tree.this, exp.Table):
        return tree
    on, using = tree.expressions, tree.args.get("using") or []
    group = tree.args.get("group")
    select = exp.Select(expressions=[exp.Paren(this=one) for one in (*on, *using)], from_=exp.From(this=tree.this))
    select.set("group", group)
    select.set(PIVOT, len(on))
    return select


def _with_inside(tree: Any) -> Any:  # noqa: ANN401 - likewise
    """Return a tree in which what is named before INSERT or CREATE is named before the query that they are of."""
    query = tree.args.get("expression") if isinstance(tree, exp.Insert | exp.Create) else None
    if isinstance(query, exp.Query) and tree.args.get("with_") is not None and query.args.get("with_") is None:
        query.set("with_", tree.args["with_"].pop())
    return tree


def is_statement(tree: Any) -> bool:  # noqa: ANN401 - likewise
    """Say whether a tree is no mere expression, such as another dialect's keyword and an alias."""
    if isinstance(tree, exp.Alias | exp.Condition) and not isinstance(tree, exp.Query):
        return False
    if any(isinstance(node.args.get("alias"), exp.Placeholder) for node in tree.find_all(exp.Alias)):
        return False  # DuckDB's `alias: expression`
    names = (node.this for node in tree.find_all(exp.Table) if isinstance(node.this, exp.Identifier))
    return all(name.args.get("quoted") or name.name.upper() not in ABOUT for name in names)
