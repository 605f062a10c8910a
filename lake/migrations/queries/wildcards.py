"""Wildcards that name columns: ``* EXCLUDE (…)``, ``* REPLACE (… AS …)`` and ``* RENAME (… AS …)``."""

from collections.abc import Iterator, Mapping
from typing import Any

from sqlglot import exp

from ranklake.lake.migrations.queries.findings import Edit, Finding
from ranklake.lake.migrations.queries.meanings import Meaning, Table
from ranklake.lake.migrations.queries.references import Reading
from ranklake.lake.migrations.queries.reserved import quoted
from ranklake.lake.migrations.queries.statements import Statement


def left_by(star: Any, others: Mapping[str, Meaning]) -> dict[str, Meaning]:  # noqa: ANN401 - sqlglot's
    """Return those of some columns that a wildcard gives under names which they do not have any more."""
    named = {one.name.lower() for one in _listed(star, "except_")}
    named |= {one.this.name.lower() for one in _listed(star, "rename")}
    for one in _listed(star, "replace"):
        name = one.alias.lower()
        named |= {name} if name in others and {*others[name].names} == {name} else set()
    return {name: one for name, one in others.items() if name not in named}


def wild_part(node: Any) -> str:  # noqa: ANN401 - likewise
    """Return in which part of a wildcard a column is named, ``except_`` or ``rename``; empty in none."""
    around = node.parent.parent if isinstance(node.parent, exp.Alias) else node.parent
    if not isinstance(around, exp.Star):
        return ""
    return next(
        (key for key in ("except_", "rename") if any(node in (one, one.this) for one in _listed(around, key))), ""
    )


def wild_edits(
    one: Statement,
    node: Any,  # noqa: ANN401 - likewise
    part: str,
    reading: Reading,
    tables: Mapping[str, Table],
) -> Iterator[Edit | Finding]:
    """Yield what becomes of a column that a wildcard leaves out, or gives another name."""
    meaning, begin, end = reading.meaning_of(node, tables), node.this.meta["start"], node.this.meta["end"] + 1
    if meaning.plain == node.name.lower():
        return
    if part == "rename":
        if meaning.plain is None:
            yield Finding(begin, f"{node.name} is computed now, and renamed here; rewrite it by hand")
            return
    else:
        others = [reading.meaning_of(other, tables).names for other in _listed(node.parent, part) if other is not node]
        if not {*meaning.names}.isdisjoint(name for names in others for name in names):
            yield Finding(begin, f"{node.name} is part of what others here are, too; rewrite it by hand")
            return
    yield Edit(begin, end, ", ".join(quoted(name, one.quote) for name in meaning.names))


def _listed(star: Any, key: str) -> list[Any]:  # noqa: ANN401 - likewise
    return list(star.args.get(key) or ())
