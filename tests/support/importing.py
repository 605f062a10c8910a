"""Importing into a lake, and asking what it holds."""

import pytest
from bringing import adds_up, bring

from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.source import SourceError
from ranklake.lake.contracts.load import contract
from ranklake.lake.query.sql import query
from ranklake.lake.tables.read import read


def imported(lake, spool, format_name, *paths, **options):
    """Import files and ingest them; return what was imported. Ingest stores and refuses just what was said."""
    done = import_files(format_name, [str(path) for path in paths], str(spool), **options)
    brought = bring(lake, spool)
    if not done.again:
        assert brought.rows_stored == sum(done.rows.values())
        assert brought.rows_rejected == sum(done.refused.values())
    adds_up(lake, spool)
    return done


def ask(lake, sql):
    """Return the rows of an answer, as dicts."""
    return query(lake, sql, {}, None).to_pylist()


def rejects(lake):
    """Return reason and row of what is in quarantine."""
    return read(lake.tables, contract("rejects"), ["reason", "row", "table", "run"]).to_pylist()


def refused_as_another_run(kind, files, spool):
    """Assert that a run which has rows of the first file takes it again, and not the second."""
    import_files(kind, [str(files[0])], str(spool), run="r")
    with pytest.raises(SourceError, match=r"run r has rows of another run since .* of its own with --run"):
        import_files(kind, [str(files[1])], str(spool), run="r")
    assert import_files(kind, [str(files[0])], str(spool), run="r").again == 1
    assert import_files(kind, [str(files[1])], str(spool), run="s").runs == ["s"]
