"""Brings the statements of a text to later versions of the tables that they ask, by edits at places of words.

Comments, formatting and placeholders stay as they are. A statement is edited as a whole or left as it is: what cannot
be told for certain is found, and a person looks at it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from sqlglot import exp
from sqlglot.errors import SqlglotError

from ranklake.lake.migrations.queries.branches import agreed, ways, without
from ranklake.lake.migrations.queries.findings import Edit, Finding, Outcome, edited
from ranklake.lake.migrations.queries.meanings import Meaning, Renamed, Table
from ranklake.lake.migrations.queries.metrics import compared, named, tables_of
from ranklake.lake.migrations.queries.obstacles import obstacles
from ranklake.lake.migrations.queries.placeholders import MACRO, Span
from ranklake.lake.migrations.queries.places import KEPT, Place, place_of, standing
from ranklake.lake.migrations.queries.references import Reading, Reference, read
from ranklake.lake.migrations.queries.reserved import quoted
from ranklake.lake.migrations.queries.scopes import AMBIGUOUS, Home
from ranklake.lake.migrations.queries.statements import (
    DIALECTS,
    Statement,
    is_about_tables,
    marker,
    spelled,
    statements,
)
from ranklake.lake.migrations.queries.wildcards import wild_edits, wild_part

_NONE: Final[Mapping[str, Renamed]] = MappingProxyType({})


def rewrite(
    text: str, tables: Mapping[str, Table], holes: Sequence[Span] = (), dialects: Sequence[str] = DIALECTS
) -> Outcome:
    """Return what becomes of a text of SQL statements.

    What comes of it says nothing about a second time: a statement that would be edited again is marked with the
    versions that it is for, in a comment, and what says so is left alone.

    Parameters
    ----------
    tables
        Those that are known, by name.
    holes
        Places of the text where something unknown is filled in.
    dialects
        sqlglot's names, tried in this order.
    """
    through = ways(text) if "{%" in text else [[]]
    if through is None:
        return _too_many(text, tables)
    came = [(out, _of_one_way(without(text, out), tables, holes, dialects)) for out in through]
    edits, other = agreed(came)
    findings = list(dict.fromkeys(finding for _, one in came for finding in one.findings))
    if other is None:
        return Outcome(edits, findings)
    what = "what becomes of it depends on a branch of the template; rewrite it by hand"
    return Outcome([], [*(one for one in findings if not one.is_note), Finding(other.begin, what)])


def _too_many(text: str, tables: Mapping[str, Table]) -> Outcome:
    words = set(re.findall(r"\w+", text.lower()))
    named = [name for name, table in tables.items() if name in words and (table.touched or table.is_renamed)]
    what = f"its template has more branches than are followed, and asks {', '.join(sorted(named))}"
    return Outcome([], [Finding(0, what)] if named else [])


def _of_one_way(text: str, tables: Mapping[str, Table], holes: Sequence[Span], dialects: Sequence[str]) -> Outcome:
    """Return what becomes of a text without branches."""
    found = Outcome()
    changed = {
        name: table for name, table in tables.items() if table.touched or table.is_renamed or len(table.versions) > 1
    }
    for one in statements(text, holes, dialects):
        came = _statement(one, tables, dialects) if _concerns(one, changed) else Outcome()
        for old, new in sorted((metrics := named(one, tables)).items()):
            came.findings.append(Finding(0, f"{old} is {new.said}", is_note=not new.why_not and not came.edits))
        if metrics and not came.edits and all(finding.is_note for finding in came.findings):
            came = _of_metrics(one, tables, metrics, came)
        found.add(came, one.begin)
    return found


def _of_metrics(one: Statement, tables: Mapping[str, Table], metrics: Mapping[str, Renamed], came: Outcome) -> Outcome:
    found = once(one, tables_of(metrics, tables), metrics)
    if left := [finding for finding in found.findings if not finding.is_note]:
        return Outcome([], [*came.findings, *left])
    return Outcome(found.edits, [*came.findings, *found.findings])


def _concerns(one: Statement, changed: Mapping[str, Table]) -> bool:
    return not one.words.isdisjoint(changed) or any(
        not one.words.isdisjoint(table.touched) for table in changed.values()
    )


def _statement(one: Statement, tables: Mapping[str, Table], dialects: Sequence[str]) -> Outcome:
    found = once(one, tables)
    if left := [finding for finding in found.findings if not finding.is_note]:
        return Outcome([], left)
    if not found.edits:
        return found
    if _is_settled(one.text, found.edits, tables, dialects):
        return found
    named = {name: table.newest for name, table in tables.items() if name in one.words and len(table.versions) > 1}
    marked = [*found.edits, Edit(one.head, one.head, marker(named))]
    if _is_settled(one.text, marked, tables, dialects):
        return Outcome(marked, found.findings)
    return Outcome([], [Finding(0, "what would come of it cannot be read again; rewrite it by hand")])


def _is_settled(text: str, edits: list[Edit], tables: Mapping[str, Table], dialects: Sequence[str]) -> bool:
    """Say whether a statement, its placeholders covered, is one that a second look leaves alone once it is edited."""
    for one in statements(edited(text, edits), (), dialects):
        if one.tree is None:
            return False
        found = once(one, tables)
        if found.edits or any(not finding.is_note for finding in found.findings):
            return False
    return True


def once(one: Statement, tables: Mapping[str, Table], metrics: Mapping[str, Renamed] = _NONE) -> Outcome:
    """Return what becomes of a statement, and of metrics that it names, without a thought of a second time."""
    if one.tree is None:
        named = {name: table.touched for name, table in tables.items() if name in one.words and table.touched}
        renamed = {name: frozenset({name}) for name, table in tables.items() if table.is_renamed and name in one.words}
        named |= renamed
        if any(not one.words.isdisjoint(touched) for touched in named.values()) or (named and is_about_tables(one)):
            return Outcome([], [Finding(0, f"it is not understood, and asks {', '.join(sorted(named))}")])
        return Outcome()
    try:
        reading = read(one, tables)
    except SqlglotError:
        return Outcome([], [Finding(0, "its SELECTs cannot be told apart (an alias twice?)")])
    found = Outcome()
    found.findings += obstacles(one, reading, tables)
    for ref in reading.references:
        own = compared(one, ref, metrics) if metrics else None
        for what in _reference(one, reading, ref, tables) if own is None else own:
            if isinstance(what, Edit):
                found.edits.append(what)
            elif all((one.what, one.is_note) != (what.what, True) for one in found.findings):  # a note is told once
                found.findings.append(what)
    found.edits += _table_edits(one, reading, tables, found.edits)
    return found


def _table_edits(
    one: Statement, reading: Reading, tables: Mapping[str, Table], edits: Sequence[Edit]
) -> Iterator[Edit]:
    """Yield other names for tables; what says one before a column goes on as an alias."""
    columns = _columns(tables, reading.versions)
    nodes = {id(node): node for scope in reading.scopes.every for _, node in reading.scopes.tables(scope, columns)}
    for node in nodes.values():
        name = node.this.name.lower()
        if not isinstance(node.this, exp.Identifier) or not tables[name].is_renamed:
            continue
        begin, end = node.this.meta["start"], node.this.meta["end"] + 1
        said = one.text[begin:end]
        is_said = any(column.table.lower() == name for column in one.tree.find_all(exp.Column))
        is_said |= any(f"{said}." in edit.text for edit in edits)
        written = f'"{tables[name].called}"' if said[0] == '"' else quoted(tables[name].called, one.quote)
        yield Edit(begin, end, written + (f" AS {said}" if is_said and not node.alias else ""))


def _reference(
    one: Statement, reading: Reading, ref: Reference, tables: Mapping[str, Table]
) -> Iterator[Edit | Finding]:
    """Yield what becomes of a column."""
    at = int(ref.node.this.meta.get("start", 0))
    if ref.home == AMBIGUOUS:
        around = reading.scopes.tables_around(ref.scope, _columns(tables, reading.versions))
        if any(ref.name in tables[table].meanings.get(reading.versions[table], {}) for table in around):
            yield Finding(at, f"{ref.name} may belong to several tables; say which")
    place = place_of(ref)
    what = standing(ref, place, one, reading, tables)
    if what == KEPT:
        return
    if not isinstance(ref.home, Home):
        if what := what or _capture(ref, reading, tables):
            yield Finding(at, what)
        return
    table, meaning = tables[ref.home.table], reading.meaning_of(ref.node, tables)
    if (part := wild_part(ref.node)) and not meaning.gone:
        yield from wild_edits(one, ref.node, part, reading, tables)
        return
    qualifier = _qualifier(ref, ref.home, reading, meaning, place, tables)
    if what := what or _hindrance(one, ref, meaning, place, table, qualifier):
        yield Finding(at, what)
    elif qualifier is not None:
        if meaning.note:
            yield Finding(at, f"{table.name}.{ref.name}: {meaning.note}", is_note=True)
        yield from _edits(one, ref, meaning, qualifier, place)


def _capture(ref: Reference, reading: Reading, tables: Mapping[str, Table]) -> str:
    """Return how a name that meant something else would mean a column that a table gets; empty where it does not."""
    if ref.node.table or ref.home == AMBIGUOUS:
        return ""
    later = {name: table.versions[table.newest] for name, table in tables.items()}
    home = reading.scopes.find(ref.scope, ref.name, "", later)
    if home == ref.home:
        return ""
    return f"{ref.name} means something else here, and a table gets a column of this name; qualify it"


def _hindrance(
    one: Statement, ref: Reference, meaning: Meaning, place: Place, table: Table, qualifier: str | None
) -> str:
    """Return why a column cannot be brought along; empty where it can."""
    if meaning.gone:
        return f"{table.name}.{ref.name}: {meaning.gone}"
    is_sorted = place.clause.startswith("order") and "datafusion" in one.engines
    is_taken = is_sorted and any(name != ref.name and name in place.outputs for name in meaning.names)
    if qualifier is None or is_taken:  # DataFusion refuses ORDER BY t.a beside an alias a
        return f"{ref.name} becomes {meaning.text('')}, a name that others have here; rewrite it by hand"
    is_stuck = meaning.plain is None and _is_in_macro(ref.node)
    return f"{ref.name} is computed now, and stands in a macro; rewrite it by hand" if is_stuck else ""


def _edits(one: Statement, ref: Reference, meaning: Meaning, qualifier: str, place: Place) -> Iterator[Edit | Finding]:
    identifier = ref.node.this
    begin, end = identifier.meta.get("start", -1), identifier.meta.get("end", -1) + 1
    said = one.text[begin:end]
    if begin < 0 or said.strip('"`').lower() != ref.name:
        yield Finding(max(begin, 0), f"{ref.name} is not found where it stands")
        return
    plain = meaning.plain
    if plain == ref.name and not qualifier:
        return
    quote = said[0] if said[0] in '"`' else ""
    called = f"{quote}{ref.name}{quote}" if quote else quoted(ref.name, one.quote)
    alias = f" AS {called}" if place.is_item and plain != ref.name else ""
    if plain is not None:
        written = f"{quote}{plain}{quote}" if quote else quoted(plain, one.quote)
        yield Edit(begin, end, f"{qualifier}{written}{alias}")
    else:
        first = min(part.meta.get("start", begin) for part in ref.node.parts)
        text = meaning.text(qualifier or one.text[first:begin], one.quote)
        if meaning.is_computed:
            text, what = spelled(text, one)
            if what:
                yield Finding(begin, f"{ref.name}: {what}", is_note=bool(text))
        yield Edit(first, end, text + alias)
    if place.is_unnamed and plain != ref.name:
        yield Finding(begin, f"a column computed from {ref.name} has no alias, and so another name now", is_note=True)


def _qualifier(
    ref: Reference,
    home: Home,
    reading: Reading,
    meaning: Meaning,
    place: Place,
    tables: Mapping[str, Table],
) -> str | None:
    """Return what must stand before the new name, so that it belongs to the same table; None where nothing does."""
    if ref.node.table:
        return ""
    later = {name: table.versions[table.newest] for name, table in tables.items()}
    same = all(reading.scopes.find(ref.scope, name, "", later) == home for name in meaning.names)
    hidden = place.clause not in {"where", "aggregate"} and any(
        name in place.outputs and name != ref.name for name in meaning.names
    )
    if same and not hidden:
        return ""
    if not home.alias:
        return None
    alias = home.alias.strip('"').lower()
    if any(reading.scopes.find(ref.scope, name, alias, later) != home for name in meaning.names):
        return None
    return f"{home.alias}."


def _columns(tables: Mapping[str, Table], versions: Mapping[str, int]) -> dict[str, frozenset[str]]:
    return {name: table.versions[versions.get(name, table.newest)] for name, table in tables.items()}


def _is_in_macro(node: Any) -> bool:  # noqa: ANN401 - sqlglot's
    around = node.find_ancestor(exp.Anonymous, exp.Query)
    return isinstance(around, exp.Anonymous) and str(around.this).startswith(MACRO)
