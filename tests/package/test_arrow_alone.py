"""Arrow alone: commands that read do without pandas, and Ctrl-C while they start ends them."""

import signal
import subprocess
import sys

import pytest

from ranklake import arrow_alone
from ranklake.cli import run

COMMAND = [sys.executable, "-X", "importtime", "-m", "ranklake"]
SLOW = """
import os, signal
from ranklake import cli
imported = cli.importlib.import_module
def slowly(name):
    os.kill(os.getpid(), signal.SIGINT)
    return imported(name)
cli.importlib.import_module = slowly
try:
    cli.main(["runs", "--help"])
except BaseException:
    print("an exception that may be lost")
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", [["runs"], ["status"], ["sql", "SELECT 1 AS one"], ["catalog"]])
def test_a_command_that_reads_imports_no_pandas(tmp_path, command):
    """It does its work all the same."""
    pytest.importorskip("pandas")
    assert run(["ingest", "--lake", str(tmp_path / "lake"), "--spool", str(tmp_path / "spool")]) == 0
    done = subprocess.run([*COMMAND, *command, "--lake", str(tmp_path / "lake")], capture_output=True, check=True)
    assert done.stdout
    assert b"pyarrow" in done.stderr
    assert b"pandas.core" not in done.stderr


def test_a_command_group_starts_without_models():
    """Commands of ``ranklake retain`` that read no file of policies or of policy tests do not wait for pydantic."""
    code = "import sys, ranklake.commands.retain; print('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"False\n"


def test_a_round_parses_no_queries_of_people():
    """What every command and stage imports knows nothing of SQL's dialects: to load them takes 0.3 CPU seconds."""
    code = "import sys, ranklake.context, ranklake.pipeline.stages; print('sqlglot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"False\n"


@pytest.mark.slow
def test_what_needs_pandas_by_name_has_it():
    """A table becomes a frame, and a frame a table, after pyarrow was told that there is none."""
    pytest.importorskip("pandas")
    code = """
import sys
from ranklake.arrow_alone import leave_pandas_out
leave_pandas_out()
import pyarrow as pa
table = pa.table({"a": [1, None]})
assert "pandas" not in sys.modules
frame = table.to_pandas()
assert pa.Table.from_pandas(frame)["a"].null_count == pa.array(frame["a"]).null_count == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_pandas_that_is_there_stays(monkeypatch):
    """Nothing is hidden from a process that has it already, and no finder is left behind."""
    before = list(sys.meta_path)
    monkeypatch.setitem(sys.modules, "pandas", sys)
    arrow_alone.leave_pandas_out()
    assert sys.meta_path == before


@pytest.mark.slow
def test_ctrl_c_while_a_command_starts_ends_it():
    """As the signal, not as an exception: what imports pandas for pyarrow lets none through, so commands went on."""
    done = subprocess.run([sys.executable, "-c", SLOW], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, b"")
