"""What users find by looking: `dir`, `help`, `repr`, a notebook's HTML, and types that an editor understands."""

import inspect
import json
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ranklake.capture
import ranklake.lake
from ranklake import capture
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.store import Store

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("docs/**/*.md")]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
CHECKED = {
    "typeCheckingMode": "standard",
    "reportUndefinedVariable": False,  # an example goes on where another ended
    "reportMissingImports": False,
    "reportMissingModuleSource": False,
}


@pytest.fixture
def run(tmp_path):
    """Give a run that records."""
    with capture.start(run="r1", spool=str(tmp_path / "s"), local_dir=str(tmp_path / "l"), samplers="off") as run:
        yield run


@pytest.mark.parametrize("room", [ranklake.capture, ranklake.lake])
def test_dir_has_what_users_may_call(room):
    """And nothing else; each is there, and says what it does."""
    assert dir(room) == sorted(room.__all__)
    assert all(inspect.getdoc(getattr(room, name)) for name in dir(room))
    text = pydoc.plaintext.document(room)
    assert all(name in text for name in room.__all__)
    assert "import_module" not in text


def test_a_run_shows_what_a_training_script_may_call(run):
    """No part that it is made of, and each with its documentation."""
    names = dir(run)
    assert {"step", "phase", "log", "close", "summary", "name"} <= set(names)
    assert not {"rows", "slots", "recording", "launch"} & set(names)
    assert not [name for name in names if name.startswith("_")]
    assert all(inspect.getdoc(inspect.getattr_static(type(run), name)) for name in names)


def test_a_run_says_what_it_is(tmp_path):
    """Its name, rank and state; what is missing in a notebook; a run that records nothing says so."""
    run = capture.start(run="r1", spool=str(tmp_path / "s"), local_dir=str(tmp_path / "l"), samplers="off")
    assert re.fullmatch(r"<run r1 \([a-z]+-[a-z]+-\d+\), attempt 0, rank 0 of 1: records>", repr(run))
    run.log({"a/b": object()})
    assert "1 of scalars" in run._repr_html_()
    run.close()
    assert repr(run).endswith(": closed>")
    assert "ranklake show r1" in run._repr_html_()
    assert repr(capture.Run(run.launch)).endswith(": records nothing>")


def test_a_lake_says_where_it_is(tmp_path):
    """Without credentials, and in a notebook with its tables, as text."""
    lake = Lake.create(str(tmp_path / "<b>lake"))
    assert repr(lake) == f"<lake {tmp_path}/<b>lake>"
    shown = lake._repr_html_()
    assert "<code>steps</code>" in shown
    assert "<b>lake" not in shown
    assert "secret" not in repr(Lake.of(Store("s3://user:secret@bucket/lake")))


def test_types_are_shipped():
    """An installed package says that it has types."""
    assert (Path(ranklake.__file__).parent / "py.typed").exists()


@pytest.mark.slow
def test_the_examples_of_the_documentation_type_check(tmp_path):
    """An editor finds no wrong call or attribute in them, and finds one in an example that has it."""
    for page in PAGES:
        for number, text in enumerate(PYTHON.findall(page.read_text(encoding="utf-8"))):
            name = "_".join(page.relative_to(ROOT).with_suffix("").parts)
            (tmp_path / f"{name}_{number}.py".replace("-", "_")).write_text(text)
    (tmp_path / "wrong.py").write_text("from ranklake import capture\ncapture.start(jobb=1).stepp(3)\n")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(CHECKED))
    command = [str(Path(sys.executable).with_name("basedpyright")), "-p", str(tmp_path), "--outputjson"]
    done = subprocess.run([*command, "--pythonpath", sys.executable], capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] > 20
    wrong = [(Path(one["file"]).name, one["rule"], one["message"]) for one in found["generalDiagnostics"]]
    assert [one for one in wrong if one[0] != "wrong.py"] == []
    assert any("stepp" in message for _, _, message in wrong)
