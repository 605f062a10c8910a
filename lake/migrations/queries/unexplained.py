"""Names of columns that stand where nothing here knows what they mean, so that none is passed over without a word."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.tokens import TokenType

from ranklake.lake.migrations.queries.findings import Finding
from ranklake.lake.migrations.queries.meanings import Table
from ranklake.lake.migrations.queries.references import Reading
from ranklake.lake.migrations.queries.statements import Statement

_GIVEN: Final = (exp.Alias, exp.TableAlias, exp.CTE, exp.Table, exp.Schema, exp.PropertyEQ, exp.Join, exp.Aliases)
"""What has names that a statement gives itself, or that are looked at elsewhere."""
_AFTER: Final = frozenset({TokenType.L_PAREN, TokenType.COLON, TokenType.COLON_EQ, TokenType.FARROW})


def unexplained(one: Statement, reading: Reading, tables: Mapping[str, Table]) -> Iterator[Finding]:
    """Yield names of columns which a table calls otherwise that stand where nothing else looked at them."""
    names = {column for name, version in reading.versions.items() for column in tables[name].otherwise(version)}
    if names.isdisjoint(one.words):
        return
    seen = {node.meta["start"] for node in one.tree.find_all(exp.Identifier) if _is_seen(node, reading)}
    aliases = {node.alias for node in one.tree.find_all(exp.Alias)}
    for node in one.tree.find_all(exp.Column):
        words = re.findall(r"\w+", node.name.lower())
        if len(words) > 1 and not names.isdisjoint(words) and node.name not in aliases:
            yield Finding(
                node.this.meta.get("start", 0), f'"{node.name}" is a name that an engine made; rewrite it by hand'
            )
    tokens = Dialect.get_or_raise(one.dialect).tokenize(one.text)
    for token, after in zip(tokens, [*tokens[1:], None], strict=True):
        is_name = token.text.lower() in names and token.token_type != TokenType.STRING
        is_own = after is not None and after.token_type in _AFTER  # a function, or a field that is given a name
        if is_name and not is_own and token.start not in seen and not one.is_placeholder(token.start):
            yield Finding(token.start, f"{token.text} stands where it is not understood; rewrite it by hand")


def _is_seen(node: Any, reading: Reading) -> bool:  # noqa: ANN401 - sqlglot's
    if "start" not in node.meta:
        return False
    around = node.parent
    if isinstance(around, exp.Column):
        is_read = reading.is_read(around) or reading.scopes.of(around) is None
        if node.arg_key == "table":
            scope = reading.scopes.of(around)
            return scope is None or bool(reading.scopes.called(scope, node.name))
        return is_read
    if isinstance(around, exp.Dot):
        return bool(node.arg_key == "expression")
    return isinstance(around, _GIVEN) or node.find_ancestor(exp.Lambda) is not None
