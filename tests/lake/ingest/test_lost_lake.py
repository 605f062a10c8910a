"""A lake that is gone is not made anew without a word: its holds, its trail and its deletions would be gone, too."""

import json
import shutil

import pytest
from governed import Site
from segments import put_segment, step_rows

from ranklake.cli import run
from ranklake.lake.audit.trail import record
from ranklake.lake.ingest.spool.spool import NOT_MARKED, LostLakeError, Spool, mark_fed, refuse_lost
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.store import Store


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Give a folder with a configuration and a segment in its spool, and work there."""
    (tmp_path / "ranklake.toml").write_text('[lake]\nuri = "lake"\n[spool]\nuri = "spool"\n')
    put_segment(tmp_path / "spool", step_rows(5))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", ["ingest", "pipeline"])
def test_what_a_spool_has_fed_is_not_made_again(place, command, capsys):
    """Moved away, the lake is missed; moved back, all goes on; ``--new`` makes another, which is missed as well."""
    assert run([command]) == 0
    shutil.move(place / "lake", place / "elsewhere")
    capsys.readouterr()
    assert run([command]) == 2
    said = capsys.readouterr().err
    assert "this spool has fed a lake since 20" in said
    assert "ranklake ingest --new" in said
    assert not (place / "lake").exists()
    shutil.move(place / "elsewhere", place / "lake")
    assert run([command]) == 0
    shutil.rmtree(place / "lake")
    assert run([command, "--new"]) == 0
    assert len(Site(place).rows("steps")) == 5
    shutil.rmtree(place / "lake")
    assert run([command]) == 2
    assert "has fed 2 lakes" in capsys.readouterr().err


def test_a_witness_knows_that_there_was_a_lake(place, capsys):
    """Where the spool is another, the witness says how long the audit log of the lake was."""
    (place / "ranklake.toml").write_text(
        f'[lake]\nuri = "lake"\n[spool]\nuri = "spool"\n[audit]\nwitness = "{place}/witness"\n'
    )
    lake = Store.at(str(place / "witness"))
    made = Lake.create(str(place / "lake"))
    record(made.configured(audit=made.config.audit.__class__(witness=lake.uri)), "ann", "test", "x")
    shutil.rmtree(place / "lake")
    capsys.readouterr()
    assert run(["ingest"]) == 2
    assert "the witness knows 1 rows of its audit log" in capsys.readouterr().err
    assert run(["ingest", "--new"]) == 0


def test_a_spool_that_cannot_be_marked_says_so(place, monkeypatch):
    """Ingest goes on, and its account names the mark; what else lies beside it says nothing of lakes."""
    spool = Spool(str(place / "spool"))
    (place / "spool/lakes").mkdir()
    (place / "spool/lakes/notes.txt").write_text("hello")
    refuse_lost(spool, "lake")
    monkeypatch.setattr(spool, "put", lambda *_: (_ for _ in ()).throw(PermissionError()))
    mark_fed(spool, "0" * 32)
    assert list(spool.passed_over.values()) == [NOT_MARKED]
    monkeypatch.undo()
    (place / "spool/lakes" / ("1" * 32)).write_text(json.dumps(["\x1b[2J"]))
    with pytest.raises(LostLakeError, match=r"^lake: there is no lake, and this spool has fed a lake; restore it"):
        refuse_lost(spool, "lake")
