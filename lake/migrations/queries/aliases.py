"""What an engine takes a bare name for that is a column of what is read and an alias of what is selected.

Engines differ, and a table that gets or loses a column of an alias's name changes what a query means without a word.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlglot import exp

INPUT: Final = "input"
"""A column of what is read."""
ALIAS: Final = "alias"
REFUSED: Final = ""

_INPUT: Final = (INPUT,)
_ALIAS_LAST: Final = (INPUT, ALIAS)
_ALIAS_FIRST: Final = (ALIAS, INPUT)

_RULES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "datafusion": {
        "group": _ALIAS_LAST,
        "having": _ALIAS_LAST,
        "qualify": _ALIAS_LAST,
        "order": _ALIAS_FIRST,
        "order within": _ALIAS_FIRST,
        "order aggregate": _ALIAS_FIRST,
    },
    "postgres": {"group": _ALIAS_LAST, "qualify": (), "order": _ALIAS_FIRST},
    "duckdb": {
        "select": _ALIAS_LAST,
        "where": _ALIAS_LAST,
        "group": _ALIAS_LAST,
        "having": _ALIAS_LAST,
        "qualify": _ALIAS_LAST,
        "order": _ALIAS_FIRST,
        "order within": _ALIAS_LAST,
        "order aggregate": _ALIAS_LAST,
    },
    "trino": {"qualify": (), "order": _ALIAS_FIRST, "order within": _ALIAS_FIRST, "order aggregate": _ALIAS_FIRST},
}
"""What comes first, by engine and clause; only columns where nothing is said. Tests ask DataFusion and DuckDB."""

_ENGINES: Final[Mapping[str, tuple[str, ...]]] = {
    "postgres": ("datafusion", "postgres"),
    "duckdb": ("duckdb",),
    "trino": ("trino",),
}


def engines_of(dialects: Sequence[str]) -> tuple[str, ...]:
    """Return the engines that may be asked in sqlglot's dialects; all, for one whose rules are not known."""
    found = {engine for dialect in dialects for engine in _ENGINES.get(dialect, tuple(_RULES))}
    return tuple(sorted(found))


def has_alias(engine: str, name: Any, items: Sequence[Any]) -> bool:  # noqa: ANN401 - sqlglot's identifier
    """Say whether a name is that of something selected: DataFusion and PostgreSQL tell quoted capitals apart."""
    return any(_folded(engine, name) == _folded(engine, said) for item in items if (said := _said(item)) is not None)


def is_exact(engine: str, name: Any) -> bool:  # noqa: ANN401 - likewise
    """Say whether capitals of a name count, so that none of our columns has it: all of theirs are small."""
    return _folded(engine, name) != str(name.name).lower()


def taken(engine: str, clause: str, *, is_input: bool, is_alias: bool, is_key: bool | None) -> set[str]:
    """Return what an engine takes a name for: one of the two, `REFUSED`, or more where that is not certain.

    Parameters
    ----------
    clause
        See `ranklake.lake.migrations.queries.places`.
    is_key
        Whether groups are made by a column of this name; None where nobody knows. It counts in HAVING alone.
    """
    order = _RULES[engine].get(clause, _INPUT)
    there = {INPUT: is_input, ALIAS: is_alias}
    if clause == "having" and is_input and not is_key:
        instead = (ALIAS if is_alias else INPUT) if engine == "duckdb" else REFUSED
        return {instead, INPUT} if is_key is None else {instead}
    return {next((one for one in order if there[one]), REFUSED)}


def _said(item: Any) -> Any:  # noqa: ANN401 - likewise
    if isinstance(item, exp.Alias):
        return item.args.get("alias")
    return item.this if isinstance(item, exp.Column) and isinstance(item.this, exp.Identifier) else None


def _folded(engine: str, name: Any) -> str:  # noqa: ANN401 - likewise
    is_said = engine in {"datafusion", "postgres"} and bool(name.args.get("quoted"))
    return str(name.name) if is_said else str(name.name).lower()
