"""Two tables over versions, queries brought along to them, and what engines give."""

import duckdb
import pyarrow as pa

from ranklake.lake.migrations.queries.rewrite import rewrite
from ranklake.lake.migrations.queries.statements import apply_edits
from ranklake.lake.migrations.queries.tables import table_at
from ranklake.lake.migrations.steps.columns import Add, Convert, Drop, Rename, Retype
from ranklake.lake.migrations.steps.computed import Merge, Split
from ranklake.lake.query.engine import engine

STEPS = {"run": "string", "rank": "int32", "samples": "int64", "dur_ms": "float64", "tokens": "int64"}
SPANS = {"run": "string", "rank": "int32", "examples": "int64", "start_ms": "float64"}


def after(types, steps):
    """Return the types that steps make."""
    types = dict(types)
    for step in steps:
        if isinstance(step, Rename | Convert):
            types = {step.to if name == step.column else name: one for name, one in types.items()}
        elif isinstance(step, Add):
            types[step.column] = "int64"
        elif isinstance(step, Drop):
            del types[step.column]
        elif isinstance(step, Retype):
            types[step.column] = step.to
        elif isinstance(step, Split | Merge):
            made = dict.fromkeys(step.came, "string")
            types = {name: one for name, one in types.items() if name not in step.sources} | made
    return types


def known(**changes):
    """Return tables by name: `steps` and `spans`, each with the lists of steps of its migrations."""
    found = {}
    for name, types in (("steps", STEPS), ("spans", SPANS)):
        versions = {1: types}
        for number, steps in enumerate(changes.get(name, ()), 1):
            versions[number + 1] = after(versions[number], steps)
        found[name] = table_at(name, versions, dict(enumerate(changes.get(name, ()), 1)))
    return found


def said(text, tables):
    """Return a rewritten text and what a person is told; a second time nothing happens, and the same is told."""
    found = rewrite(text, tables)
    later = apply_edits(text, found.edits)
    again = rewrite(later, tables)
    assert not again.edits, later
    return later, [one.message for one in sorted(found.findings) if not one.is_note]


def asked(text, rows, *, is_sorted=False):
    """Return the names and the rows that DataFusion gives; in an order of their own, unless they come in one."""
    ctx = engine(1)
    for name, one in rows.items():
        ctx.register_record_batches(name, [one.combine_chunks().to_batches()])
    frame = ctx.sql(text)
    found = pa.Table.from_batches(frame.collect(), frame.schema())
    return _lines(found, is_sorted=is_sorted)


def asked_of_duckdb(text, rows, *, is_sorted=False):
    """Return what DuckDB gives, likewise."""
    with duckdb.connect() as connection:
        for name, one in rows.items():
            connection.register(name, one)
        return _lines(connection.sql(text).to_arrow_table(), is_sorted=is_sorted)


def _lines(found, *, is_sorted):
    rows = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
    return found.column_names, rows if is_sorted else sorted(rows, key=lambda row: [_order(value) for value in row])


def _order(value):
    return (value is None, float(f"{value:.6g}") if isinstance(value, float | int) else str(value))
