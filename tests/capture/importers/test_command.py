"""The command: one line for what is wrong, JSON for machines, and exit codes."""

import gzip
import json

import pytest

from ranklake.capture.importers.source import sources
from ranklake.cli import run


def test_json_and_exit_codes(tmp_path, capsys):
    """Rows and refusals are counted in JSON; a file that was cut off ends with 1."""
    file = tmp_path / "result.txt.gz"
    whole = gzip.compress(b'\n:::MLLOG {"time_ms": 1727896395561, "key": "init_start"}\n:::MLLOG {"time\n')
    file.write_bytes(whole)
    assert run(["import", "mlperf", str(file), "--spool", str(tmp_path / "spool"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["rows"], said["files"]) == ({"events": 1, "runs": 1, "spans": 1}, 1)
    assert said["refused"] == {"the MLLOG line is incomplete": 1}
    file.write_bytes(whole[:-9])
    assert run(["import", "mlperf", str(file), "--spool", str(tmp_path / "spool")]) == 1
    assert "the gzip archive is cut off" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tabel", "x"], "no such format 'tabel'; did you mean 'table'?"),
        (["table", "x"], "table needs a mapping"),
        (["mlperf", "x", "--mapping", "helios"], "--mapping: mlperf takes no mapping"),
        (["mlperf", "nowhere.txt"], "nowhere.txt: no such file"),
        (["mlperf", "x", "--run", "a/b"], "--run: not a run's name"),
        (["mlperf"], "Missing argument"),
    ],
)
def test_bad_usage(tmp_path, capsys, arguments, said):
    """What cannot be is said in one line, with exit 2."""
    assert run(["import", *arguments, "--spool", str(tmp_path / "spool")]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("size", [1, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_archives_of_any_size_are_whole(tmp_path, size):
    """Unpacking by pieces loses nothing at their edges, nor between archives that follow each other."""
    file = tmp_path / "x.gz"
    file.write_bytes(gzip.compress(b"a" * size) + gzip.compress(b"b" * size) + b"\0" * 9)
    source = sources([str(file)], lambda _: {})[0]
    assert b"".join(source.blocks()) == b"a" * size + b"b" * size
    assert source.cut is None
