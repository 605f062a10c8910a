"""Start: where things are and what is missing is known, and told, when a run begins."""

import importlib.util

import pytest
from recorded import rows

from ranklake import capture
from ranklake.capture.recording.upload import missing_package


def told(caplog):
    return [record.getMessage() for record in caplog.records]


@pytest.fixture
def configured(tmp_path, monkeypatch):
    """Give a folder whose ranklake.toml says where spools are."""
    monkeypatch.chdir(tmp_path)
    for name in ("RANKLAKE_SPOOL", "RANKLAKE_LOCAL_SPOOL", "RANKLAKE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "ranklake.toml").write_text('[spool]\nuri = "from-file"\nlocal = "local-from-file"\n')
    return tmp_path


def test_the_file_says_where_spools_are_as_it_does_for_the_commands(configured, monkeypatch, caplog):
    """An argument comes before the environment, and that before the file."""
    with capture.start(run="a") as run, run.step(0):
        assert (configured / "local-from-file" / "a").is_dir()
    assert len(rows(configured / "from-file", "steps")) == 1
    monkeypatch.setenv("RANKLAKE_SPOOL", str(configured / "from-environment"))
    monkeypatch.setenv("RANKLAKE_LOCAL_SPOOL", str(configured / "local-from-environment"))
    with capture.start(run="b") as run, run.step(0):
        assert (configured / "local-from-environment" / "b").is_dir()
    assert len(rows(configured / "from-environment", "steps")) == 1
    with capture.start(run="c", spool=configured / "given", local_dir=configured / "local-given") as run, run.step(0):
        assert (configured / "local-given" / "c").is_dir()
    assert len(rows(configured / "given", "steps")) == 1
    assert told(caplog) == []


def test_a_misspelt_place_is_told(configured, caplog):
    """A run begins all the same."""
    (configured / "ranklake.toml").write_text('[spool]\nurl = "x"\nlocal = "local"\nuri = 7\n')
    capture.start(run="a").close()
    lines = "\n".join(told(caplog))
    assert "'url' in [spool]" in lines
    assert "did you mean" in lines
    assert "uri in [spool]" in lines


def test_what_a_store_needs_is_told_at_the_start(place, caplog, monkeypatch):
    """Not when the first segment is to be sent; nothing is lost, it waits."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "gcsfs" else find(name, *rest))
    run = place.start(spool="gs://bucket/spool")
    (line,) = told(caplog)
    assert "gs://bucket/spool" in line
    assert "pip install gcsfs" in line
    run.close(0.1)
    assert missing_package("s3://bucket/spool") == ""
    assert "'sss'" in missing_package("sss://bucket")
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    assert missing_package("s3://bucket") in {"", "pip install 'ranklake[s3]'"}


def test_a_checkpoint_makes_its_folder(place):
    """As a user would expect of ``run.checkpoint("out/x.pt")``."""
    target = place.local.parent / "out" / "deep" / "x.pt"
    with place.start() as run, run.checkpoint(target, step=1) as to:
        to.write_text("weights")
    assert target.read_text() == "weights"


def test_a_checkpoint_that_nothing_was_written_to_does_not_end_training(place, caplog):
    """One rank of many writes it; the others' blocks are empty. What was there stays."""
    target = place.local.parent / "x.pt"
    target.write_text("before")
    with place.start() as run, run.checkpoint(target, step=1):
        pass
    assert target.read_text() == "before"
    assert any("nothing was written" in line for line in told(caplog))
    assert rows(place.spool, "artifacts") == []
