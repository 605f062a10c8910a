"""The way back from a rollup's rows to data files and segments."""

import json
from pathlib import Path

import pytest
from segments import put_segment, step_rows

from ranklake.cli import run

TARGETS = ("steps.loss", "step_rollup.step", "attempt_facts.run", "rank_health.rank", "run_summary.run")


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Make a lake with two runs, two ranks, of two segments each; what fed the run r1, by path."""
    folder = tmp_path_factory.mktemp("places")
    lake, spool = folder / "lake", folder / "spool"
    own = {}
    for name, first in (("r1", 10), ("r2", 20)):
        for rank in (0, 1):
            for segment in (0, 1):
                rows = step_rows(30 + rank, run=name, rank=rank, segment=segment, incarnation=first + rank)
                path = put_segment(spool, rows)
                if name == "r1":
                    own[str(path)] = 30 + rank
    options = ["--lake", str(lake), "--spool", str(spool)]
    assert run(["ingest", *options]) == 0
    assert run(["rollup", "--lake", str(lake)]) == 0
    return options, own


def way(capsys, options, column, status=0):
    """Return what the command prints as JSON."""
    capsys.readouterr()
    assert run(["lineage", column, "--run", "r1", *options, "--json"]) == status
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("column", TARGETS)
def test_a_number_reaches_exactly_its_segments(capsys, places, column):
    """Each of the run's segments, with its rows, and none of the other run; all verified."""
    options, own = places
    result = way(capsys, options, column)
    fed = {one["path"]: one["rows"] for one in result["segments"] if one["table"] == "steps"}
    assert fed == own
    assert {one["state"] for one in [*result["segments"], *result["files"]]} == {"verified"}
    assert sum(one["rows"] for one in result["files"] if one["table"] == "steps") == sum(own.values())
    assert bool(result["transforms"]) == (column != "steps.loss")


@pytest.mark.parametrize(
    ("column", "hint"), [("steps.los", "did you mean 'loss'?"), ("step.loss", "did you mean 'steps'?")]
)
def test_an_unknown_name_has_a_near_one(capsys, places, column, hint):
    """A mistyped table or column exits 2 with the nearest."""
    options, _ = places
    assert run(["lineage", column, "--run", "r1", *options]) == 2
    assert hint in capsys.readouterr().err


def test_a_run_without_rows_exits_1(capsys, places):
    """Nothing to follow is said, not passed over."""
    options, _ = places
    assert run(["lineage", "steps.loss", "--run", "r9", *options]) == 1
    assert "no rows of run r9" in capsys.readouterr().err


def test_a_flipped_byte_is_named(capsys, places):
    """Of a segment in the spool, and of a data file; a purged segment is no fault. Last: it leaves the lake so."""
    column = "run_summary.run"
    options, own = places
    first, second, *_ = map(Path, own)
    first.write_bytes(flipped(first))
    second.unlink()
    result = way(capsys, options, column, status=1)
    assert [line.split(":")[0] for line in result["faults"]] == [str(first)]
    assert {one["state"] for one in result["segments"] if one["path"] == str(second)} == {"not in the spool any more"}
    file = next(one for one in result["files"] if one["table"] == "steps")
    data = Path(options[1]) / "tables/steps" / file["path"]
    data.chmod(0o644)
    data.write_bytes(flipped(data))
    result = way(capsys, options, column, status=1)
    assert f"steps/{file['path']}" in {line.split(":")[0] for line in result["faults"]}


def flipped(path):
    """Return a file's bytes, one bit of the middle changed."""
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    return bytes(raw)
