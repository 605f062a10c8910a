"""Random queries that follow random migrations: an engine gives the same before and after, or a person is told."""

import math
import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queries_of_versions import SPANS, STEPS, asked, asked_of_duckdb, known

from ranklake.lake.migrations.queries.rewrite import rewrite
from ranklake.lake.migrations.queries.statements import DIALECTS, apply_edits
from ranklake.lake.migrations.steps.columns import Add, Convert, Rename

ENGINES = {"postgres": asked, "duckdb": asked_of_duckdb}
TYPES = {"steps": STEPS, "spans": SPANS}
ROWS = {
    "steps": pa.table(
        {
            "run": ["a", "b", "a", "c", "b", "a"],
            "rank": pa.array([5, 1, 4, 2, 0, 3], pa.int32()),
            "samples": [50, -7, 5, None, 2, 8],
            "dur_ms": [1.5, 20.0, -3.5, 7.25, None, 300.0],
            "tokens": [60, 20, 30, -40, 50, 10],
        }
    ),
    "spans": pa.table(
        {
            "run": ["a", "b", "d", "a"],
            "rank": pa.array([2, 1, 3, 0], pa.int32()),
            "examples": [1, -2, 3, 9],
            "start_ms": [0.5, 7.5, 2.5, -1.0],
        }
    ),
}
"""No column has a number twice, and each sorts the rows in another way."""

NEW = ["examples", "items", "size", "value", "user", "start_ms", "tokens", "samples"]
ADDED = pa.array([3, 11, -5, 7, 0, 1])


@st.composite
def chains(draw, types):
    """Draw the steps of up to three migrations; factors are powers of two, so that nothing is rounded."""
    names, every = dict(types), []
    for _ in range(draw(st.integers(0, 3))):
        steps = []
        for _ in range(draw(st.integers(1, 3))):
            old = draw(st.sampled_from([name for name in names if name != "run"]))
            free = [name for name in (*NEW, old) if name == old or name not in names]
            new = draw(st.sampled_from(free))
            kind = draw(st.sampled_from(["rename", "rename", "convert", "add"]))
            if kind == "add" and new != old:
                steps.append(Add(new))
                names[new] = "int64"
                continue
            if kind == "convert" and names[old] in {"float64", "int64"}:
                factor = draw(st.sampled_from([1000, 8, -2] if names[old] == "int64" else [0.5, 1024, 0.125, -1.0]))
                steps.append(Convert(old, new, "u", factor, draw(st.sampled_from([0, 0, 32, -5]))))
            elif new != old:
                steps.append(Rename(old, new))
            names = {new if name == old else name: one for name, one in names.items()}
        every.append(steps)
    return every


class Drawn:
    """A random SELECT, drawn piece by piece.

    Attributes
    ----------
    names
        Columns of what is read, each with what qualifies it.
    aliases
        What is selected is called so, as far as it was drawn.
    """

    def __init__(self, draw, depth=0):
        self.draw, self.depth = draw, depth
        self.names, self.aliases, self.items, self.keys = [], [], [], []

    def one(self, *values):
        """Draw one of some."""
        return self.draw(st.sampled_from(values))

    def is_one_of(self, number):
        """Draw whether, once in so many times."""
        return self.draw(st.integers(1, number)) == 1

    def maybe(self, text):
        """Draw a text, or none."""
        return text if self.is_one_of(2) else ""

    def name(self, aliases=2):
        """Draw a name: of an alias once in so many times, or of a column, which another table may have, too."""
        if self.aliases and self.is_one_of(aliases):
            return self.one(*self.aliases)
        where, column = self.one(*self.names)
        is_clear = sum(column == other for _, other in self.names) == 1
        return self.one(column, column, f"{where}.{column}") if is_clear else f"{where}.{column}"

    def value(self, aliases=2):
        """Draw an expression of one name."""
        return self.one("{0}", "{0}", "{0}", "abs({0})", "{0} + 1", "-{0}").format(self.name(aliases))

    def total(self):
        """Draw an aggregate."""
        return f"{self.one('sum', 'max', 'min', 'count')}({self.value(aliases=8)})"

    def alias(self):
        """Draw what something is called; some differ in their letters alone."""
        plain = self.one("c", "d", *NEW, *(column for _, column in self.names if column != "run"))
        return self.one(plain, plain, plain, f'"{plain}"', f'"{plain.capitalize()}"')

    def select(self, expression):
        """Add what is selected, with an alias or without one."""
        as_ = self.alias() if not re.fullmatch(r"[\w.]+", expression) or self.is_one_of(2) else ""
        self.items.append(f"{expression} AS {as_}" if as_ else expression)
        self.aliases += [as_] if as_ else []
        return as_ or expression

    def grouped(self):
        """Draw clauses of a query with groups."""
        key = self.name()
        self.keys.append(self.one(key, key, self.select(key), "1"))
        for _ in range(self.one(0, 1, 2)):
            self.select(self.total())
        if self.is_one_of(3):
            self.keys.append(self.value())
        having = f" HAVING {self.one(self.total(), self.value(aliases=1))} {self.one('>', '<')} {self.one(1, 7)}"
        return f"{self.where()} GROUP BY {', '.join(self.keys)}{self.maybe(having)}"

    def plain(self):
        """Draw clauses of a query without."""
        for _ in range(self.one(1, 2, 3)):
            self.select(self.value(aliases=8))
        if self.is_one_of(6):
            over = f"row_number() OVER (ORDER BY {self.value(aliases=8)}, {self.name(aliases=8)})"
            return f"{self.where()} QUALIFY {self.select(over)} {self.one('<', '>')} 3"
        return self.where()

    def where(self):
        """Draw a condition."""
        return self.maybe(f" WHERE {self.value(aliases=8)} {self.one('>', '<=', '<>')} {self.one(0, 5, 20)}")

    def query(self):
        """Draw all of it."""
        sources = self.sources()
        clauses = self.grouped() if self.is_one_of(2) else self.plain()
        order = ""
        if not self.depth and self.is_one_of(2):
            every = ", ".join(str(place) for place in range(1, len(self.items) + 1))
            order = f" ORDER BY {self.one(self.value(), self.name())}{self.one('', ' DESC')} NULLS LAST, {every}"
        return f"SELECT {self.one('', '', '', 'DISTINCT ')}{', '.join(self.items)} FROM {sources}{clauses}{order}"

    def sources(self):
        """Draw what is read: a table, a join, or a query."""
        kind = self.one("one", "one", "join", "inner") if self.depth == 0 else "one"
        if kind == "inner":
            inner = Drawn(self.draw, 1)
            text = inner.query()
            self.names = [("q", name) for name in inner.given]
            return f"({text}) AS q"
        table = self.one(*TYPES)
        call = self.one(table, "x")
        self.names = [(call, one) for one in TYPES[table]]
        from_ = table if call == table else f"{table} AS {call}"
        if kind == "one":
            return from_
        other = "spans" if table == "steps" else "steps"
        self.names += [("y", one) for one in TYPES[other]]
        on = f"JOIN {other} y ON {call}.run = y.run"
        return f"{from_} {self.one(on, on, on, f'NATURAL JOIN {other} y', f'JOIN {other} y USING (run)')}"

    @property
    def given(self):
        """What its columns are called."""
        return [one.rpartition(" AS ")[2].rpartition(".")[2] for one in self.items]


@st.composite
def queries(draw):
    """Draw a query: of a table, a join, a query within, or a CTE; by columns and aliases in every clause."""
    drawn = Drawn(draw)
    text = drawn.query()
    if drawn.is_one_of(8):
        inner = Drawn(draw, 1)
        name = drawn.one("q", "steps")
        return f"WITH {name} AS ({inner.query()}) SELECT {inner.given[0]} FROM {name}"
    if drawn.is_one_of(6) and not re.search(" WHERE | GROUP BY | QUALIFY ", text):
        inner = Drawn(draw, 1)
        head, order, tail = text.partition(" ORDER BY ")
        return f"{head} WHERE {drawn.one('rank', 'tokens', 'examples')} IN ({inner.query()}){order}{tail}"
    return text


def moved(name, steps):
    """Return the rows of a table after steps."""
    rows = ROWS[name]
    for step in steps:
        is_added = isinstance(step, Add)
        rows = rows.append_column(step.column, ADDED[: rows.num_rows]) if is_added else step.rows(rows)
    return rows


def given_by(ask, text, rows):
    """Return names and rows, in their order where the query says one; None where the engine refuses the query."""
    try:
        names, lines = ask(text, rows, is_sorted="NULLS LAST" in text)
    except Exception:  # noqa: BLE001 - some of what is drawn is no query, such as names that are ambiguous
        return None
    return names, lines


def is_near(one, other):
    if isinstance(one, float | int) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return one == other


def check(text, changes):
    """Bring a query along for all engines and for each; hold what the engines give against what they gave."""
    tables = known(**changes)
    later = {name: moved(name, [step for steps in changes[name] for step in steps]) for name in ROWS}
    before = {dialect: given_by(ask, text, ROWS) for dialect, ask in ENGINES.items()}
    came = 0
    for dialects in (DIALECTS, ("postgres",), ("duckdb",)):
        found = rewrite(text, tables, dialects=dialects)
        if any(not one.is_note for one in found.findings):
            assert not found.edits
            continue
        written = apply_edits(text, found.edits)
        assert not rewrite(written, tables, dialects=dialects).edits, written
        for dialect in set(dialects) & before.keys():
            if before[dialect] is None:
                continue
            after = ENGINES[dialect](written, later, is_sorted="NULLS LAST" in text)
            assert after[0] == before[dialect][0], (dialect, written)
            assert len(after[1]) == len(before[dialect][1]), (dialect, written)
            for one, other in zip(before[dialect][1], after[1], strict=True):
                assert all(map(is_near, one, other)), (dialect, written, one, other)
            came += bool(found.edits)
    return came, sum(one is not None for one in before.values())


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_rewritten_query_gives_of_the_new_tables_what_it_gave_of_the_old(data):
    """Whatever the chain of changes, engines give the same names and values, in the same order, before and after."""
    changes = {name: data.draw(chains(types)) for name, types in TYPES.items()}
    check(data.draw(queries()), changes)


def test_what_is_drawn_is_brought_along():
    """The comparison is no empty one: it sees a wrong value, and a query that an engine refuses afterwards."""
    changes = {"steps": [[Convert("dur_ms", "dur_s", "s", 0.5), Rename("samples", "examples")]], "spans": []}
    text = "SELECT run AS c, sum(dur_ms) AS d FROM steps GROUP BY c HAVING d > 5 ORDER BY max(samples), 1, 2"
    assert check(text, changes) == (4, 2)
    wrong = {**ROWS, "steps": moved("steps", [Convert("dur_ms", "dur_ms", "s", 0.25)])}
    assert given_by(asked, text, wrong) != given_by(asked, text, ROWS) != given_by(asked_of_duckdb, text, wrong)
