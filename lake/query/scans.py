"""Which columns of which tables a plan reads, by its nodes: a plan's text has the query's literals in it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ranklake.lake.query.engine import DataFrame, SessionContext

_FOLDING: Final = ("eliminate_limit", "eliminate_filter", "propagate_empty_relation")
"""Rules that take tables out of a plan that gives no rows, such as LIMIT 0: a client asks so what there is."""

_JOINED: Final = "SET datafusion.optimizer.enable_physical_uncorrelated_scalar_subquery = false"
"""Makes joins of subqueries, which are nodes, and not parts of expressions."""


def prepare(ctx: "SessionContext") -> None:
    """Make a session plan so that `scans` sees all that a query names."""
    for rule in _FOLDING:
        ctx.remove_optimizer_rule(rule)
    ctx.sql(_JOINED)


def scans(frame: "DataFrame") -> Iterator[tuple[str, list[str]]]:
    """Yield each table that a query reads, with the columns, and once more for each time it reads it.

    A subquery as a key of ORDER BY or GROUP BY, or within an aggregate or a window, is no node and not seen.
    """
    yield from _of(frame.optimized_logical_plan())


def _of(plan: Any) -> Iterator[tuple[str, list[str]]]:  # noqa: ANN401 - DataFusion's
    node = plan.to_variant()
    kind = type(node).__name__
    if kind == "TableScan":
        yield node.fqn()[2], [name for _, name in node.projection()]
    for inner in plan.inputs():
        found = _of(inner)
        # what refers to itself reads its own rows under its own name
        yield from (one for one in found if one[0] != node.name()) if kind == "RecursiveQuery" else found
