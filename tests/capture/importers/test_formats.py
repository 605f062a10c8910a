"""Importers of installed packages are found by their entry point, and are equals of our own."""

import sys

import pytest
from importing import ask, imported

from ranklake.capture.importers.formats import formats
from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.source import SourceError

MODULE = """
import re
from ranklake.capture.importers.formats import Format

def read(source, recording):
    for line in source.lines():
        try:
            at, value = line.text.split()
            recording.scalar("train/loss", float(value), int(at) * 10**9, kind="gauge")
        except ValueError:
            recording.refuse("scalars", "no time and value", line.text, line.number)

FORMAT = Format(summary="ours", recognises="OURLOG", read=read, table="scalars", mark=re.compile(rb"OURLOG"))
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Give what installs a package with a module and the entry point `ourlog`; it is gone after the test."""

    def put(module):
        info = tmp_path / "site" / "ourlog-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ourlog\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[ranklake.importers]\nourlog = ourlog_importer:FORMAT\n")
        (info.parent / "ourlog_importer.py").write_text(module)
        monkeypatch.syspath_prepend(str(info.parent))
        formats.cache_clear()

    yield put
    formats.cache_clear()
    sys.modules.pop("ourlog_importer", None)


def test_an_installed_importer(install, lake, spool, tmp_path):
    """It imports and refuses rows like ours, and a refusal of another importer names it."""
    install(MODULE)
    (tmp_path / "log").write_text("1700000000 2.5\nOURLOG\n")
    done = imported(lake, spool, "ourlog", tmp_path / "log", run="r")
    assert (done.rows["scalars"], done.refused) == (1, {"no time and value": 1})
    assert ask(lake, "SELECT metric, value FROM scalars") == [{"metric": "train/loss", "value": 2.5}]
    with pytest.raises(SourceError, match="it looks like ourlog: ranklake import ourlog log"):
        import_files("sacct", [str(tmp_path / "log")], str(spool))


def test_an_installed_importer_that_cannot_be_loaded(install, spool, tmp_path):
    """The refusal names it, and where it comes from."""
    install("import no_such_module")
    with pytest.raises(SourceError, match=r"ourlog_importer:FORMAT: importer ourlog cannot be loaded .*no_such_module"):
        import_files("sacct", [str(tmp_path / "log")], str(spool))
