"""The leak fixture itself: it must be able to fail."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"
LEAKS = {
    "a thread": (
        "import threading\ndef test_it():\n    threading.Thread(target=threading.Event().wait, daemon=True).start()"
    ),
    "a file": "import os\ndef test_it(tmp_path):\n    os.open(tmp_path / 'x', os.O_CREAT)",
}


def outcome(folder, script):
    """Run one test below the repository's conftest and return pytest's exit code and output."""
    shutil.copy(CONFTEST, folder)
    (folder / "test_one.py").write_text(script)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    leaky(reason): leaks")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=60)
    return done.returncode, done.stdout


@pytest.mark.parametrize("what", LEAKS)
def test_a_test_that_leaks_fails(tmp_path, what):
    """A thread or a file that a test leaves behind is an error that names it; the marker lets it pass."""
    code, told = outcome(tmp_path, LEAKS[what])
    assert code == 1
    assert "left running" in told or "left open" in told
    marked = LEAKS[what].replace("def test_it", "import pytest\n@pytest.mark.leaky('on purpose')\ndef test_it")
    assert outcome(tmp_path, marked)[0] == 0


def test_a_tidy_test_passes(tmp_path):
    """What is joined and closed in time is no leak."""
    script = "import threading\ndef test_it(tmp_path):\n    t = threading.Thread(target=print); t.start(); t.join()"
    assert outcome(tmp_path, script)[0] == 0
