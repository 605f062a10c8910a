"""The leak fixture itself: it must be able to fail."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"
TESTS = """
import os, threading
import pytest

def test_a_thread():
    threading.Thread(target=threading.Event().wait, daemon=True).start()

@pytest.mark.leaky("on purpose")
def test_a_thread_on_purpose():
    test_a_thread()

def test_a_file(tmp_path):
    os.open(tmp_path / "x", os.O_CREAT)

@pytest.mark.leaky("on purpose")
def test_a_file_on_purpose(tmp_path):
    test_a_file(tmp_path)

def test_tidy(tmp_path):
    thread = threading.Thread(target=print)
    thread.start()
    thread.join()
    (tmp_path / "x").write_text("")
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Run tests below the repository's conftest; return its words, and the errors by test, none where it passed."""
    folder = tmp_path_factory.mktemp("leaks")
    patient = CONFTEST.read_text(encoding="utf-8")
    hasty = re.sub(r"^PATIENCE_S = .*$", "PATIENCE_S = 0.1", patient, flags=re.MULTILINE)
    assert hasty != patient
    (folder / "conftest.py").write_text(hasty, encoding="utf-8")
    (folder / "test_one.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    leaky(reason): leaks\n    slow: takes long")
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-p", "no:xdist", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=280)
    assert done.returncode == 1, done.stdout
    assert len(re.findall(r"^PASSED ", done.stdout, re.MULTILINE)) == TESTS.count("def test_"), done.stdout
    return dict(re.findall(r"^ERROR test_one.py::test_(\w+) - .*?(threads|files)", done.stdout, re.MULTILINE))


def test_a_test_that_leaks_fails(told):
    """A thread or a file that a test leaves behind is an error that names its kind; the marker lets it pass."""
    assert told == {"a_thread": "threads", "a_file": "files"}


def test_a_tidy_test_passes(told):
    """What is joined and closed in time is no leak."""
    assert "tidy" not in told
