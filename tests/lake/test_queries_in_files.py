"""Queries within notebooks, dashboards and Python: edited where they stand, the rest stays byte for byte."""

import ast
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranklake.lake.migrations.queries.json_files import dashboard, notebook, strings
from ranklake.lake.migrations.queries.python_code import literal, python
from ranklake.lake.migrations.queries.statements import DIALECTS, UnreadableError, apply_edits
from ranklake.lake.migrations.queries.tables import table_at
from ranklake.lake.migrations.steps.columns import Convert, Rename
from ranklake.lake.migrations.steps.computed import Split

OLD = {"run": "string", "samples": "int64", "dur_ms": "float64", "label": "string"}
NEW = {"run": "string", "examples": "int64", "dur_s": "float64", "a": "string", "b": "string"}
STEPS = [
    Rename("samples", "examples"),
    Convert("dur_ms", "dur_s", "s", 0.001),
    Split("label", (("a", "x"), ("b", "y")), back="a || '-' || b"),
]
TABLES = {"steps": table_at("steps", {1: OLD, 2: NEW}, {1: STEPS})}


def said(kind, text):
    """Return a text brought along, and what is left to do; a second time nothing happens."""
    found = kind(text, TABLES, DIALECTS)
    later = apply_edits(text, found.edits)
    assert not kind(later, TABLES, DIALECTS).edits
    return later, [one.message for one in found.findings if not one.is_note]


@pytest.mark.parametrize(
    ("before", "later"),
    [
        ("q = 'SELECT samples FROM steps'", "q = 'SELECT examples AS samples FROM steps'"),
        (
            'con.sql("""\n  SELECT samples -- é\n  FROM steps""")',
            'con.sql("""\n  SELECT examples AS samples -- é\n  FROM steps""")',
        ),
        (
            "q = f'SELECT dur_ms FROM steps WHERE run = {runs[0]!r} AND samples > {f(a, b=1):d}'",
            "q = f'SELECT (dur_s * 1000) AS dur_ms FROM steps WHERE run = {runs[0]!r} AND examples > {f(a, b=1):d}'",
        ),
        (
            "q = 'SELECT samples AS s FROM steps WHERE run = {run}'.format(run=1)",
            "q = 'SELECT examples AS s FROM steps WHERE run = {run}'.format(run=1)",
        ),
        (
            "q = rf\"SELECT samples FROM steps WHERE run ~ '\\{x}' AND run = {b}\"",
            "q = rf\"SELECT examples AS samples FROM steps WHERE run ~ '\\{x}' AND run = {b}\"",
        ),
        (
            "q = 'SELECT samples FROM steps WHERE run = {}'.format(1)",
            "q = 'SELECT examples AS samples FROM steps WHERE run = {}'.format(1)",
        ),
        ("x = 'no rows from steps'", "x = 'no rows from steps'"),
        ("x = 'Describe steps'", "x = 'Describe steps'"),
        ("q = rb'SELECT samples FROM steps'", "q = rb'SELECT samples FROM steps'"),
        ('"""SELECT samples FROM steps"""', '"""SELECT samples FROM steps"""'),
        ("x = steps['samples']", "x = steps['samples']"),
        ("x = 'Select samples from all steps of mine'", "x = 'Select samples from all steps of mine'"),
    ],
)
def test_literals_of_python(before, later):
    """Literals are edited where they stand, whatever their quotes and prefixes."""
    assert said(python, before)[0] == later
    ast.parse(later)


@pytest.mark.parametrize(
    "text",
    [
        "q = 'SELECT samples FROM ' + table + ' JOIN steps ON true'",
        "q = 'SELECT run FROM steps'\nif hot:\n    q += ' WHERE samples > 3'",
        "q = f'SELECT {column} FROM steps WHERE samples > 1'",
        'q = f\'SELECT samples, {"samples" if a else "run"} FROM steps\'',
        "q = r'SELECT max(label) AS l FROM steps'",
        "q = 'SELECT sam' 'ples FROM steps'",
        "q = 'SELECT max(label) AS l FROM steps'",
        "q = ('SELECT samples '\n     'FROM steps')",
        "q = 'SELECT samples\\nFROM steps'",
        "q = f'SELECT samples FROM steps WHERE run = {a:{b}}'",
        "q = f'SELECT samples FROM {{steps}} WHERE run = {a}'",
        "q = ' '.join(['SELECT samples', 'FROM steps WHERE run = 1'])",
        "q = f'{select} FROM steps'",
        "q = 'SELECT {} FROM steps'.format('samples')",
        "q = 'SUMMARIZE steps'",
        "q = 'describe steps'",
        "q = 'FROM steps'",
    ],
)
def test_what_python_puts_together_is_told(text):
    """SQL of several texts, or with a column that is filled in, is told and left alone."""
    later, findings = said(python, text)
    assert later == text
    assert findings


@given(st.text(), st.sampled_from(["", "r", "f", "rf"]), st.sampled_from(["'", '"', "'''", '"""']))
@pytest.mark.slow
def test_what_a_literal_says_is_what_python_says(text, prefix, quote):
    """What is read of a literal is what Python reads, and each character stands where it is said to."""
    source = f"x = {prefix}{quote}{text}{quote}"
    try:
        node = ast.parse(source).body[0].value
    except (SyntaxError, ValueError):
        return
    if "\r" in source or "\x0c" in source or ast.unparse(ast.parse(source)).count("=") != 1:
        return
    found = literal(source, 4, len(source), node)
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and found is not None:
        assert source[found.begin : found.begin + len(found.text)] == found.text == node.value


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)), st.booleans())
def test_strings_of_json_are_found(value, ascii_only):
    """Every string that is a value is found, with its way, and says what JSON says."""
    text = json.dumps(value, ensure_ascii=ascii_only, indent=1)

    def walk(one, way=()):
        if isinstance(one, str):
            yield way, one
        elif isinstance(one, list):
            for place, inner in enumerate(one):
                yield from walk(inner, (*way, place))
        else:
            for key, inner in one.items():
                yield from walk(inner, (*way, key))

    found = [(way, json.loads(text[begin:end])) for way, begin, end in strings(text)]
    assert found == list(walk(json.loads(text)))


def test_replacements_fit_their_literals():
    """What would end a literal, or mean something else in it, is told."""
    tables = {"steps": table_at("steps", {1: OLD, 2: {**OLD, "order": "int64"}}, {1: [Rename("samples", "order")]})}
    for quote, is_edited in (('"', False), ("'", True), ('"""', False)):
        found = python(f"q = {quote}SELECT sum(samples) AS s FROM steps{quote}", tables, ("postgres",))
        assert (bool(found.edits), bool(found.findings)) == (is_edited, not is_edited)


def cells(*sources, language="python"):
    """Return a notebook as Jupyter writes it."""
    made = [
        {"cell_type": "code", "metadata": {}, "outputs": [{"text": "SELECT samples FROM steps"}], "source": one}
        for one in sources
    ]
    about = {"kernelspec": {"language": language}}
    return json.dumps({"cells": made, "metadata": about, "nbformat": 4}, indent=1) + "\n"


@pytest.mark.parametrize(
    ("source", "later"),
    [
        (["%%sql\n", "SELECT samples\n", "FROM steps"], ["%%sql\n", "SELECT examples AS samples\n", "FROM steps"]),
        ("!ls\nq = 'SELECT samples FROM steps'", "!ls\nq = 'SELECT examples AS samples FROM steps'"),
        ("%%bash\nduckdb l.db < q.sql", "%%bash\nduckdb l.db < q.sql"),
        ("%%sql df <<\nSELECT samples FROM steps", "%%sql df <<\nSELECT examples AS samples FROM steps"),
        ("%%sql --with long\nSELECT samples FROM steps", "%%sql --with long\nSELECT examples AS samples FROM steps"),
        ("%sql\nSELECT samples FROM steps", "%sql\nSELECT examples AS samples FROM steps"),
        (
            "if a:\n  %time x = 1\n  q = 'SELECT samples FROM steps'",
            "if a:\n  %time x = 1\n  q = 'SELECT examples AS samples FROM steps'",
        ),
        (
            ["q = '''SELECT run,\n", "samples FROM steps'''"],
            ["q = '''SELECT run,\n", "examples AS samples FROM steps'''"],
        ),
    ],
)
def test_cells_of_notebooks(source, later):
    """Cells keep their lines; magics, outputs and the layout of the file stay."""
    assert said(notebook, cells("1", source)) == (cells("1", later), [])


@pytest.mark.parametrize(
    "source",
    [
        "%%bash\nduckdb -c 'SELECT samples FROM steps'",
        "%%writefile q.sql\nSELECT samples FROM steps",
        "%%bigquery d\nSELECT * FROM steps",
        "!duckdb -c 'SELECT samples FROM steps'",
        "%time d = q('SELECT samples FROM steps')",
        "%%sql describe steps",
        "%sql summarize steps",
        "%%sql --save a SELECT samples FROM steps",
        "y = %sql SELECT samples FROM steps",
    ],
)
def test_cells_that_are_not_read_are_told(source):
    """What a magic or a shell is given is left alone, and told where it names a table and what changed of it."""
    text = cells("1", source)
    later, findings = said(notebook, text)
    assert later == text
    assert len(findings) == 1


def test_notebooks_of_other_languages():
    """A SQL notebook's cells are SQL; those of a language that is not read are left alone."""
    text = "SELECT samples FROM steps"
    assert said(notebook, cells(text, language="sql"))[0] == cells(
        f"{text[:7]}examples AS samples FROM steps", language="sql"
    )
    assert said(notebook, cells(text, language="R"))[0] == cells(text, language="R")
    assert said(notebook, cells("for in: 'SELECT samples FROM steps'"))[1] == [
        "the cell is no Python that is understood here; look at its queries"
    ]


def test_broken_dashboards_are_refused():
    """What has parts of a dashboard and is no JSON says so; what has none is nobody's business."""
    assert said(dashboard, '{"a": 1}\n{"a": 2}') == ('{"a": 1}\n{"a": 2}', [])
    with pytest.raises(UnreadableError, match="line 2"):
        dashboard('{"panels":\n[', TABLES, DIALECTS)


@pytest.mark.parametrize("text", ["{", '{"worksheets": []}', "[]", "{} {}"])
def test_broken_notebooks_are_refused(text):
    """What is no notebook says so."""
    with pytest.raises(UnreadableError):
        notebook(text, TABLES, DIALECTS)


def panel(sql, source=None, **more):
    """Return a dashboard of one panel."""
    target = {"refId": "A", "rawSql": sql, **more}
    return json.dumps({"panels": [{"datasource": source, "targets": [target], "title": "SELECT samples FROM steps"}]})


def test_panels_ask_through_data_sources():
    """SQL of our kinds of data sources is brought along; another's is told; what is no query stays."""
    later = "SELECT examples AS samples FROM steps"
    for source in (None, "lake", {"type": "trino-datasource"}, {"type": "motherduck-duckdb-datasource", "uid": "x"}):
        assert said(dashboard, panel("SELECT samples FROM steps", source)) == (panel(later, source), [])
    other = panel("SELECT samples FROM steps", {"type": "mysql", "uid": "x"})
    assert said(dashboard, other) == (other, ["its data source is a mysql; if it asks the lake, rewrite it by hand"])
    for text in (panel("samples of spans"), '{"name": "x", "sql": "SELECT samples FROM steps"}', "[1]"):
        assert said(dashboard, text) == (text, [])


@pytest.mark.parametrize(
    "wrap",
    [
        lambda one: {"panels": [{"type": "row", "collapsed": True, "panels": [{"targets": [{"rawSql": one}]}]}]},
        lambda one: {"rows": [{"panels": [{"targets": [{"rawQueryText": one}]}]}]},
        lambda one: {"templating": {"list": [{"query": {"query": one}, "definition": one}]}},
        lambda one: {"panels": [], "annotations": {"list": [{"target": {"queryText": one}, "rawQuery": one}]}},
        lambda one: [{"dashboard": {"panels": [], "templating": {"list": [{"query": one}]}}}],
        lambda one: {"groups": [{"rules": [{"data": [{"model": {"rawSql": one}}]}]}]},
        lambda one: {"model": {"targets": [{"rawSQL": one}]}, "kind": 1},
        lambda one: {"targets": [{"rawSql": one}], "type": "timeseries"},
        lambda one: {"elements": {"a": {"query": {"kind": "DataQuery", "group": "trino", "spec": {"rawSQL": one}}}}},
    ],
)
def test_queries_stand_in_many_places_of_grafana(wrap):
    """Rows within rows, variables, annotations, lists, alert rules, library panels and the second schema are read."""
    text = json.dumps(wrap("SELECT samples FROM steps WHERE $__timeFilter(run) AND run IN (${run:sqlstring})"))
    assert said(dashboard, text) == (text.replace("SELECT samples", "SELECT examples AS samples"), [])
    for whole in ("SUMMARIZE steps", "DESCRIBE steps", "(SELECT * FROM steps)"):
        assert said(dashboard, json.dumps(wrap(whole)))[1]


def test_queries_within_addresses_are_told():
    """A link to Explore has a query in its address; another kind of data source in the second schema is told."""
    link = {"panels": [{"links": [{"url": '/explore?left={"queries":[{"rawSql":"SELECT samples FROM steps"}]}'}]}]}
    assert "a text here contains a query" in said(dashboard, json.dumps(link))[1][0]
    query = {"kind": "DataQuery", "group": "mysql-datasource", "spec": {"rawSql": "SELECT samples FROM steps"}}
    other = json.dumps({"spec": {"elements": {"a": {"query": query}}}})
    assert "its data source is a mysql" in said(dashboard, other)[1][0]
