"""An operator's own table, column, metric, check and rollup, from a training process to a role's query."""

import json
import os
import subprocess
import sys

import pytest
from overlays import commands, documented, mapping

from ranklake.cli import run as command

TRAINING = """
import sys
from ranklake import capture
with capture.start(job="rl", run="rl-1") as run:
    for n in range(4):
        with run.step(n, loss=1.0 / (n + 1), kl=0.25 * n):
            pass
    for n in range(6):
        run.record("rollouts", step=n, reward=0.25 * n, tokens=100 + n, annotator=f"person-{n}")
    run.scalar("rollout/queue").add(3)
    run.record("rollouts", reward="much")
    run.record("rollouts", rewrad=0.5)
    run.record("rolouts", reward=0.5)
    print(run.gaps())
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Give a folder with the documented overlay, a configuration that names it, and roles; the current one."""
    monkeypatch.chdir(tmp_path)
    documented(tmp_path / "own")
    (tmp_path / "roles.yaml").write_text(
        "roles:\n  researcher: {classes: [operational], tables: [rollouts, rollout_daily, steps]}\n"
    )
    (tmp_path / "ranklake.toml").write_text(
        '[lake]\nuri = "lake"\n[spool]\nuri = "spool"\nlocal = "local"\n'
        '[contracts]\noverlay = "own"\n[sql]\nroles = "roles.yaml"\n'
    )
    return tmp_path


def trained(folder, **environment):
    """Train in a process of its own; return what it could not record, and what it warned of."""
    done = subprocess.run(
        [sys.executable, "-c", TRAINING],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, done.stderr


def asked(capsys, *words):
    """Return the rows that ``ranklake sql`` prints."""
    assert command(["sql", *words, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_what_an_overlay_defines_is_treated_like_ours(site, capsys):
    """It is recorded, ingested, checked, rolled up, queried by role, retained, documented, and the books add up."""
    gaps, told = trained(site)
    assert "'rollouts': {'bad value': 2}" in gaps
    assert "'no contract has the table': 1" in gaps
    assert "did you mean 'rollouts'?" in told
    assert "did you mean 'reward'?" in told
    assert command(["ingest"]) == 0
    assert command(["check"]) == 0
    assert command(["rollup"]) == 0
    capsys.readouterr()
    assert asked(capsys, "SELECT step, kl FROM steps ORDER BY step") == [{"step": n, "kl": 0.25 * n} for n in range(4)]
    rows = asked(capsys, "SELECT step, reward, tokens, annotator FROM rollouts ORDER BY step")
    assert rows == [{"step": n, "reward": 0.25 * n, "tokens": 100 + n, "annotator": f"person-{n}"} for n in range(5)]
    (rejected,) = asked(capsys, "SELECT reason FROM rejects")
    assert rejected["reason"].startswith("reward_range: ")
    (day,) = asked(capsys, "SELECT * FROM rollout_daily")
    assert (day["rollouts"], day["good_ratio"], day["reward_mean"], day["kl_mean"]) == (5, 0.4, 0.5, 0.375)
    (whence,) = asked(
        capsys,
        "SELECT DISTINCT input_table FROM lineage WHERE output_table = 'rollout_daily' AND input_table = 'rollouts'",
    )
    assert whence == {"input_table": "rollouts"}
    seen = asked(capsys, "SELECT * FROM rollouts", "--role", "researcher")
    assert len(seen) == 5
    assert "annotator" not in seen[0]
    assert command(["rollup", "--json"]) == 0
    assert all(not one["partitions"] for one in json.loads(capsys.readouterr().out))
    assert command(["status"]) == 0
    (line,) = (one for one in capsys.readouterr().out.splitlines() if one.startswith("rollouts"))
    assert line.split()[1:] == ["8", "5", "1", "0", "2", "0", "0", "yes"]
    assert command(["catalog", "rollouts", "--json"]) == 0
    assert "Who judged it" in capsys.readouterr().out
    assert command(["catalog", "refresh"]) == 0
    assert command(["upkeep"]) == 0
    capsys.readouterr()
    assert command(["retain", "plan", "--as-of", "2126-01-01", "--json"]) == 0
    due = {item["table"] for item in json.loads(capsys.readouterr().out)["plan"]["items"]}
    assert {"rollouts", "rollout_daily"} <= due


@pytest.mark.slow
def test_the_commands_of_the_page_run(site, capsys):
    """Each is understood and does what it says, in the order of the page; the mapping's rows come in, too."""
    trained(site)
    (site / "judged.yaml").write_text(mapping())
    (site / "judged.csv").write_text("when,score,who\n2026-03-01T10:00:00Z,0.5,ann\n2026-03-01T11:00:00Z,3,bo\n")
    assert command(["import", "table", "judged.csv", "--mapping", "judged.yaml", "--run", "by-hand"]) == 0
    said = commands()
    assert {words[0] for words in said} >= {"config", "ingest", "sql", "import", "retain"}
    for words in said:
        assert command(words) == 0, words
    capsys.readouterr()
    assert asked(capsys, "SELECT reward, annotator FROM rollouts WHERE run = 'by-hand'") == [
        {"reward": 0.5, "annotator": "ann"}
    ]
    assert asked(capsys, "SELECT count(*) AS n FROM rejects WHERE run = 'by-hand'") == [{"n": 1}]
