"""Two nodes record one rank: neither can know, and the lake says so, names the mend, and is mended by it."""

import json

import pytest
from bringing import bring

from ranklake import capture, cli
from ranklake.lake.ingest.status.liveness import duplicate_ranks
from ranklake.lake.store.lake import Lake


def run_command(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments])
    return ended.value.code, capsys.readouterr().out


@pytest.mark.slow
def test_two_nodes_that_record_one_rank_are_shown_and_parted(tmp_path, capsys, monkeypatch):
    """``status`` names both processes; rows that wait on this node are told; ``renumber`` makes attempts of both."""
    monkeypatch.setenv("RANKLAKE_LOCAL_SPOOL", str(tmp_path / "node1"))
    spool, lake = tmp_path / "spool", Lake.create(str(tmp_path / "lake"))
    nodes = [
        capture.start(run="run", spool=spool, local_dir=tmp_path / node, rank=0, world_size=2, samplers="off")
        for node in ("node1", "node2")
    ]
    for number in range(3):
        for run in nodes:
            with run.step(number):
                pass
    for run in nodes:
        run.flush()
    nodes[0].rows.sink.record(
        "events", {"event": "late", "severity": "info"}, nodes[1].recording.identity._begun_ns + 3_000_000_000
    )
    for run in nodes:
        run.flush()
    bring(lake, spool)
    (found,) = duplicate_ranks(lake)
    assert (found.run, found.attempt, found.rank) == ("run", 0, 0)
    where = ("--lake", lake.uri, "--spool", str(spool))
    code, said = run_command(capsys, "status", *where)
    assert "recorded by two processes at a time" in said
    assert f"{found.later:016x}" in said
    _, told = run_command(capsys, "status", *where, "--json")
    facts = json.loads(told)
    assert [one["run"] for one in facts["recorded_twice"]] == ["run"]
    assert facts["waiting_on_this_node"]["unsealed"] > 0
    for run in nodes:
        run.close()
    bring(lake, spool)
    code, _ = run_command(capsys, "renumber", "run", "--lake", lake.uri)
    assert (code, duplicate_ranks(lake)) == (0, [])
