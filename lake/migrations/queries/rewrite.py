"""Updates SQL statements to the newest versions of their tables, by edits of names.

text ─▶ statements ─▶ qualify with the old columns ─▶ edits ─▶ qualify with the new columns ─▶ equal? ─▶ edits

sqlglot resolves each statement twice: the old text with the old columns, and the new text with the new columns. The
edits are made only if both have the same meaning. So `SELECT *`, USING, aliases that hide a column, and other implicit
uses of columns need no special rules: if the results differ, the statement is reported with its line and not changed.
Comments, formatting and placeholders are kept.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, product
from typing import Any, Final

from sqlglot import exp, parse_one
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.normalize_identifiers import normalize_identifiers
from sqlglot.optimizer.pushdown_projections import pushdown_projections
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import traverse_scope
from sqlglot.schema import MappingSchema

from ranklake.lake.migrations.queries.obstacles import first_place, obstacles, sources_of, table_of, unresolved_names
from ranklake.lake.migrations.queries.statements import (
    DIALECTS,
    MACRO,
    Edit,
    Finding,
    Outcome,
    Span,
    Statement,
    outermost,
    statements,
)
from ranklake.lake.migrations.queries.tables import Meaning, Table, quote_name

_MOST_VERSIONS: Final = 256
"""Maximum number of combinations of table versions to try."""
_DATAFUSION: Final = "postgres"
_INTERNAL: Final = "__v"
"""Separates name and version in the temporary names of tables."""
_HAND: Final = "rewrite it by hand"


def rewrite(
    text: str, tables: Mapping[str, Table], holes: Sequence[Span] = (), dialects: Sequence[str] = DIALECTS
) -> Outcome:
    """Return the outcome for a text of SQL statements.

    Updating the new text again must change nothing; a statement for which this fails is reported.

    Parameters
    ----------
    tables
        Known tables, by name.
    holes
        Places of placeholders in the text.
    dialects
        Dialects of sqlglot. All dialects that can parse a statement must give the same edits.
    """
    outcome = Outcome()
    for statement in statements(text, holes, dialects):
        part = _rewrite_once(statement, tables)
        if part.edits and not _is_final(statement, part.edits, tables):
            part = Outcome([], [Finding(0, f"what comes of it would be taken for an earlier version; {_HAND}")])
        part.findings += _metrics(statement, tables)
        outcome.add(part, statement.begin)
    return outcome


def _is_final(statement: Statement, edits: Sequence[Edit], tables: Mapping[str, Table]) -> bool:
    """Whether updating an edited statement again would change nothing."""
    later = statement.after(edits, statement.trees)
    outcome = _rewrite_once(later, tables)
    return later.trees.keys() == statement.trees.keys() and outcome.is_settled and not outcome.edits


def _metrics(statement: Statement, tables: Mapping[str, Table]) -> Iterator[Finding]:
    """Yield findings for renamed metrics that a statement names, unless it also has the new name."""
    for name in {"scalars", "distributions"} & tables.keys() & statement.words:
        trees = statement.trees.values()
        texts = {node.name for tree in trees for node in tree.find_all(exp.Literal) if node.is_string}
        for old in sorted(texts & tables[name].metrics.keys()):
            if tables[name].metrics[old].name not in texts:
                yield Finding(0, f"{old} is {tables[name].metrics[old].explanation}")


def _rewrite_once(statement: Statement, tables: Mapping[str, Table]) -> Outcome:
    """Return the outcome for a statement: edits and notes, or the findings that prevent edits."""
    changed = {name: table for name, table in tables.items() if table.is_renamed or len(table.versions) > 1}
    named = {name: table for name, table in changed.items() if name in statement.words}
    if not named and all(statement.words.isdisjoint(table.touched) for table in changed.values()):
        return Outcome()
    if not statement.trees:
        finding = Finding(0, f"it is not understood, and asks {', '.join(sorted(named))}")
        return Outcome([], [finding] if named and statement.may_change(named) else [])
    outcomes, error_text = [], ""
    try:
        findings = list(obstacles(statement, next(iter(statement.trees.values())), tables))
    except SqlglotError:
        findings = [Finding(0, f"its SELECTs cannot be told apart (an alias twice?); {_HAND}")]
    for dialect, tree in statement.trees.items() if all(finding.is_note for finding in findings) else ():
        try:
            outcomes.append(_in_dialect(statement, tree, dialect, tables))
        except SqlglotError as error:
            error_text = error_text or re.split(r"[.\n]", str(error))[0]
    if error_text and not outcomes and named and statement.may_change(named):
        findings.append(Finding(0, f"its columns cannot be resolved ({error_text}); {_HAND}"))
    findings = list(dict.fromkeys((*findings, *(finding for outcome in outcomes for finding in outcome.findings))))
    if blocking := [finding for finding in findings if not finding.is_note]:
        return Outcome([], blocking)
    if any(outcome.edits != outcomes[0].edits for outcome in outcomes):
        return Outcome([], [Finding(0, "engines do not agree on what it means; say which with --dialect")])
    return Outcome(outcomes[0].edits if outcomes else [], findings)


def _in_dialect(statement: Statement, tree: Any, dialect: str, tables: Mapping[str, Table]) -> Outcome:  # noqa: ANN401 - sqlglot's
    """Return the outcome for a statement in a dialect. Raises `SqlglotError` if its columns cannot be resolved."""
    outcome = Outcome()
    for query in outermost(tree):
        outcome.add(_Query(statement, query, dialect, tables).outcome())
    outcome.findings += unresolved_names(statement, tree, dialect, tables)
    outcome.edits.sort()
    return outcome


class _Query:
    """A query of a statement, resolved with the earliest versions of its tables that have its columns.

    Attributes
    ----------
    versions
        Versions of the known tables in the query.
    before
        The query qualified by sqlglot: each column with its table's alias, each star replaced by columns.
    """

    def __init__(self, statement: Statement, query: Any, dialect: str, tables: Mapping[str, Table]) -> None:  # noqa: ANN401 - sqlglot's
        self.statement, self.query, self.dialect, self.tables = statement, query, dialect, tables
        self.quote = str(Dialect.get_or_raise(dialect).IDENTIFIER_START)
        self.sources = sources_of(query, tables)
        self.versions, self.before = self._qualify_earliest()

    def _qualify_earliest(self) -> tuple[dict[str, int], Any]:
        names = sorted({str(table_of(node, self.tables)) for node in self.sources})
        choices = [sorted(self.tables[name].versions) for name in names]
        errors = []
        for choice in islice(product(*choices), _MOST_VERSIONS):
            versions = dict(zip(names, choice, strict=True))
            try:
                return versions, self._qualify(self.query, versions, self.statement)
            except SqlglotError as error:
                errors.append(error)
        raise errors[0]

    def _qualify(self, query: Any, versions: Mapping[str, int], statement: Statement) -> Any:  # noqa: ANN401 - sqlglot's
        """Return a qualified copy of a query, with versions in the names of known tables. Raises `SqlglotError`."""
        tree = query.copy()
        for column in list(tree.find_all(exp.Column)):
            if isinstance(column.this, exp.Identifier) and statement.filled_in(column.this.meta.get("start", -1)):
                column.replace(exp.Parameter(this=exp.var(column.name)))
        schema: dict[str, object] = {}
        for node in sources_of(tree, self.tables):
            name = str(table_of(node, self.tables))
            internal = f"{name}{_INTERNAL}{versions[name]}"
            schema[internal] = dict.fromkeys(self.tables[name].versions[versions[name]], "TEXT")
            if not node.alias:
                alias = node.this if isinstance(node.this, exp.Identifier) else exp.to_identifier("delta_scan")
                node.set("alias", exp.TableAlias(this=alias.copy()))
            for part, value in (("this", exp.to_identifier(internal)), ("db", None), ("catalog", None)):
                node.set(part, value)
        known = MappingSchema(schema, dialect=self.dialect)
        return qualify(tree, schema=known, dialect=self.dialect, quote_identifiers=False)

    def outcome(self) -> Outcome:
        """Return the edits with which the query keeps its meaning, or findings that prevent them."""
        known = ((self.tables[name], version) for name, version in self.versions.items())
        if all(table.newest == version and not table.is_renamed for table, version in known):
            return Outcome()
        if findings := [*self._whole_rows(), *self._sorted_by_aliases()]:
            return Outcome([], findings)
        changes = dict.fromkeys(self._columns())
        outcome = Outcome(
            [change for change in changes if isinstance(change, Edit)],
            [change for change in changes if isinstance(change, Finding)],
        )
        outcome.edits += self._renamed_tables()
        if outcome.is_settled and not self._means_the_same(outcome.edits):
            return Outcome([], [self._difference()])
        return outcome

    def _columns(self) -> Iterator[Edit | Finding]:
        """Yield edits that replace columns by names or expressions, and findings for columns without replacement."""
        ctes = {cte.alias.lower() for cte in self.query.root().find_all(exp.CTE)}
        unknown = (node for node in self.query.find_all(exp.Table) if not table_of(node, self.tables))
        has_unknown_table = any(node.name.lower() not in ctes for node in unknown)
        nodes = {node.this.meta.get("start"): node for node in self.query.find_all(exp.Column)}
        selected: dict[tuple[int, str], Meaning] = {}
        for column, name, version in _known_columns(self.before):
            meaning = self.tables[name].meanings.get(version, {}).get(column.name)
            node = nodes.get(column.this.meta.get("start", -1))
            if meaning is None:
                continue
            if meaning.note:
                place = first_place(node or self.query)
                yield Finding(place, f"{name}.{column.name}: {meaning.note}", is_note=True)
            if node is None:
                continue
            if meaning.gone:
                yield Finding(first_place(node.this), f"{name}.{column.name}: {meaning.gone}")
            elif has_unknown_table and not node.table:
                message = f"{column.name} may be of an unknown table; write {name}.{column.name}"
                yield Finding(first_place(node.this), message)
            else:
                selected[id(node.find_ancestor(exp.Select)), node.name] = meaning
                yield from self._column(node, meaning)
        for order in self.query.find_all(exp.Order):  # sqlglot replaces a selected expression here by its alias
            for node in (node for total in order.find_all(exp.AggFunc) for node in total.find_all(exp.Column)):
                if (id(order.parent), node.name) in selected:
                    yield from self._column(node, selected[id(order.parent), node.name])

    def _column(self, node: Any, meaning: Meaning) -> Iterator[Edit | Finding]:  # noqa: ANN401 - sqlglot's
        """Yield the edits of one column. A selected column keeps its old name as an alias."""
        name, text = node.name.lower(), self.statement.text
        start, end = node.this.meta["start"], node.this.meta["end"] + 1
        macro = node.find_ancestor(exp.Anonymous, exp.Query)
        if meaning.plain is None and isinstance(macro, exp.Anonymous) and str(macro.this).startswith(MACRO):
            yield Finding(start, f"{name} is computed now, and stands in a macro; {_HAND}")
            return
        item: Any = node
        while item.parent is not None and not isinstance(item.parent, exp.Select):
            item = item.parent
        quote = text[start] if text[start] in '"`' else ""
        alias = ""
        if item is node and node.arg_key == "expressions" and meaning.plain != name:
            alias = f" AS {quote}{name}{quote}" if quote else f" AS {quote_name(name, self.quote)}"
            outputs = [str(output.alias_or_name).lower() for output in getattr(item.parent, "expressions", ())]
            if self.dialect == _DATAFUSION and outputs.count(name) > 1:
                yield Finding(start, f"two columns get the name {name}, which DataFusion refuses; {_HAND}")
        elif item.arg_key == "expressions" and not isinstance(item, exp.Alias) and item.parent is self.query:
            yield Finding(start, f"a column computed from {name} has no alias, and so another name now", is_note=True)
        if meaning.plain is None:
            first = min(part.meta.get("start", start) for part in node.parts)
            yield Edit(first, end, meaning.text(text[first:start], self.quote) + alias)
        else:
            new = f"{quote}{meaning.plain}{quote}" if quote else quote_name(meaning.plain, self.quote)
            if new != text[start:end]:
                yield Edit(start, end, new + alias)

    def _renamed_tables(self) -> Iterator[Edit]:
        """Yield edits that rename tables. A name that qualifies columns becomes an alias."""
        for node in self.sources:
            table = self.tables[str(table_of(node, self.tables))]
            if not isinstance(node.this, exp.Identifier) or not table.is_renamed:
                continue
            begin, end = node.this.meta["start"], node.this.meta["end"] + 1
            written = self.statement.text[begin:end]
            is_qualifier = any(column.table.lower() == table.name for column in self.query.find_all(exp.Column))
            new = f'"{table.called}"' if written[0] == '"' else quote_name(table.called, self.quote)
            yield Edit(begin, end, new + (f" AS {written}" if is_qualifier and not node.alias else ""))

    def _means_the_same(self, edits: Sequence[Edit]) -> bool:
        """Whether the edited query with the new columns means the same as the query with the old columns."""
        statement = self.statement.after(edits, [self.dialect])
        if not statement.trees:
            return False
        place = [id(query) for query in outermost(self.query.root())].index(id(self.query))
        query = outermost(statement.trees[self.dialect])[place]
        newest = {name: table.newest for name, table in self.tables.items()}
        before = self.before.copy()
        for column, name, version in list(_known_columns(before)):
            meaning = self.tables[name].meanings.get(version, {}).get(column.name)
            if meaning is not None and not meaning.gone:
                text = meaning.text(f"{column.args['table'].sql(self.dialect)}.", self.quote)
                column.replace(normalize_identifiers(parse_one(text, dialect=self.dialect), dialect=self.dialect))
        try:
            after = self._qualify(query, newest, statement)
        except SqlglotError:
            return False
        self._drop_added(before, after)
        return bool(_canonical(before, self.tables) == _canonical(after, self.tables))

    def _drop_added(self, before: Any, after: Any) -> None:  # noqa: ANN401 - sqlglot's
        """Remove added columns from the outermost star, where additional columns are acceptable."""
        parent = self.query.parent
        is_by_place = isinstance(parent, exp.Insert) or (
            isinstance(parent, exp.Create) and isinstance(parent.this, exp.Schema)
        )
        if is_by_place or not isinstance(before, exp.Select) or before.args.get("distinct") or before.args.get("group"):
            return
        added = {name for table, version in self.versions.items() for name in self.tables[table].added_columns(version)}
        added -= {item.alias_or_name for item in before.expressions}
        after.set("expressions", [item for item in after.expressions if item.alias_or_name not in added])

    def _whole_rows(self) -> Iterator[Finding]:
        """Yield findings for wildcards and whole rows of changed tables, whose columns sqlglot cannot list."""
        for scope in traverse_scope(self.before):
            for node in scope.find_all(exp.Star, exp.TableColumn):
                alias = node.name if isinstance(node, exp.TableColumn) else getattr(node.parent, "table", "")
                for name, (_, source) in scope.selected_sources.items():
                    table, version = _version_of(source)
                    is_changed = table in self.tables and self.tables[table].newest != version
                    if is_changed and alias in {"", name} and not isinstance(node.parent, exp.Count):
                        message = "a wildcard or a whole row takes columns that are not named; name the columns"
                        yield Finding(first_place(self.query), message)

    def _sorted_by_aliases(self) -> Iterator[Finding]:
        """Yield names in expressions of ORDER BY that may be an alias or a changed column, depending on the engine."""
        moving = {name for table, version in self.versions.items() for name in self.tables[table].moving(version)}
        for order in self.query.find_all(exp.Order):
            items = order.parent.expressions if isinstance(order.parent, exp.Select) else ()
            aliases = {item.alias.lower(): item for item in items if isinstance(item, exp.Alias)}
            for node in order.find_all(exp.Column):
                parent = node.parent
                while isinstance(parent, exp.Paren):
                    parent = parent.parent
                is_whole = isinstance(parent, exp.Ordered) and parent.parent is order
                item = aliases.get(node.name.lower()) if not node.table and not is_whole else None
                if item is None or node.name.lower() not in moving:
                    continue
                if node.find_ancestor(exp.AggFunc, exp.Order) is not order and item.find(exp.AggFunc):
                    continue  # aggregates cannot be nested, so the name is a column
                message = f"{node.name} is a column of the table and an alias; engines differ on which counts"
                yield Finding(first_place(node), message)

    def _difference(self) -> Finding:
        """Return the probable reason why the edited query would have another meaning."""
        stars = [star for star in self.query.find_all(exp.Star) if not isinstance(star.parent, exp.Count)]
        joins = [join for join in self.query.find_all(exp.Join) if join.args.get("using") or join.args.get("method")]
        for nodes, message in (
            (stars, "SELECT * gives other columns; name the columns"),
            (joins, "USING or NATURAL matches columns by names, and some change; write ON"),
        ):
            if nodes:
                return Finding(first_place(nodes[0].find_ancestor(exp.Select) or self.query), message)
        message = "it would mean something else with the new columns; an alias or another table may have such a name"
        return Finding(first_place(self.query), message)


def _version_of(source: Any) -> tuple[str, int]:  # noqa: ANN401 - sqlglot's
    """Return table and version of a node of a qualified query; an empty name for other nodes."""
    name, _, version = source.name.rpartition(_INTERNAL) if isinstance(source, exp.Table) else ("", "", "")
    return (name, int(version)) if name and version.isdecimal() else ("", 0)


def _known_columns(tree: Any) -> Iterator[tuple[Any, str, int]]:  # noqa: ANN401 - sqlglot's
    """Yield the columns of known tables in a qualified query, with table and version."""
    for scope in traverse_scope(tree):
        for column in scope.columns:
            name, version = _version_of(scope.sources.get(column.table))
            if name:
                yield column, name, version


def _canonical(tree: Any, tables: Mapping[str, Table]) -> Any:  # noqa: ANN401 - sqlglot's
    """Return a qualified query in a canonical form: without parentheses, quotes, own aliases and unused columns."""
    columns = [column for column, _, _ in _known_columns(tree)]
    nodes = [node for node in tree.find_all(exp.Table) if _version_of(node)[0]]
    aliases = {node.alias: f"t{number}" for number, node in enumerate(nodes)}
    for column in columns:
        column.set("table", exp.to_identifier(aliases[column.table]))
    for node in nodes:
        table = tables[_version_of(node)[0]]
        node.set("alias", exp.TableAlias(this=exp.to_identifier(aliases[node.alias])))
        node.set("this", exp.to_identifier(table.called or table.name))
    for exists in tree.find_all(exp.Exists):
        if isinstance(exists.this, exp.Select) and not exists.this.args.get("distinct"):
            exists.this.set("expressions", [exp.Literal.number(1)])
    with suppress(SqlglotError):  # a star of an unknown table
        pushdown_projections(tree)
    for node in list(tree.find_all(exp.Paren)):
        node.replace(node.this)
    for identifier in tree.find_all(exp.Identifier):
        identifier.set("quoted", None)
    return tree
