"""Deleting one's own run: one command of one person, and nothing of anybody else's."""

import json
import os
import pwd
import signal
import subprocess
import sys
from datetime import date, timedelta

import pytest
from erased import reach
from governed import any_rows
from keyed import users
from segments import put_segment, step_rows
from ssh_keys import Keys

from ranklake.cli import run as command
from ranklake.commands.delete import NotOwnRunError, delete_own_run
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import ApprovalsSection
from ranklake.retention.erasure.archived import HeldError
from ranklake.retention.holds.holds import set_hold
from ranklake.retention.proposals.erasures import ERASURES

ME = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture
def runs(site):
    """Give a lake of runs: one of mine, one of somebody else, one of both in turn, one of nobody."""
    for number, (run, accounts) in enumerate(
        {"mine-1": [ME], "hers-1": ["ada"], "ours-1": [ME, "ada"], "nobodys-1": [None]}.items()
    ):
        for attempt, user in enumerate(accounts):
            key = {"run": run, "incarnation": 10 * number + attempt + 1}
            site.bring(any_rows("runs", 1, user=[user], attempt=[attempt], **key), "runs")
            if attempt == 0:
                site.bring(step_rows(20, **key))
    return site


def count(site):
    """Return rows of ``steps`` by run."""
    rows = query(site.lake, "SELECT run, count(*) AS n FROM steps GROUP BY run ORDER BY run").to_pylist()
    return {row["run"]: row["n"] for row in rows}


def test_my_run_goes_and_no_other(runs):
    """Every trace of it goes, with audit rows and a certificate; a second call finds the first's certificate."""
    done = delete_own_run(reach(runs), "mine-1")
    assert (done.is_fresh, done.certificate.is_clean) == (True, True)
    assert count(runs) == {"hers-1": 20, "nobodys-1": 20, "ours-1": 20}
    assert runs.places_of("mine-1") == []
    trail = [row for row in runs.rows("audit") if row["subject"] == done.erasure.name]
    assert {"erasure.propose", "erasure.approve", "erasure.applied", "erasure.certified"} <= {
        row["action"] for row in trail
    }
    assert {row["actor"] for row in trail} == {ME}
    approved = next(row for row in trail if row["action"] == "erasure.approve")
    assert approved["reason"] == "deletes a run of their own"
    again = delete_own_run(reach(runs), "mine-1")
    assert (again.is_fresh, again.certificate.name) == (False, done.certificate.name)
    runs.balances()


@pytest.mark.parametrize(
    ("run", "why"),
    [
        ("hers-1", "another account started it; propose it, and have somebody approve: ranklake erase plan --run hers"),
        ("ours-1", "another account started it"), ("nobodys-1", "nobody recorded who started it"),
        ("mine", "no such run is in the lake"), ("hers-12", "no such run"),
    ],
)  # fmt: skip
def test_foreign_runs(runs, monkeypatch, run, why):
    """What others started, if only in part, is refused in a line, whatever the environment calls the account."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "ada")
    with pytest.raises(NotOwnRunError) as caught:
        delete_own_run(reach(runs), run)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
    assert ERASURES.register(runs.lake) == {}
    assert sum(count(runs).values()) == 80


def test_holds_and_policies(runs, tmp_path):
    """A legal hold keeps it; a lake may forbid it, have another person approve, or take signatures of several."""
    set_hold(runs.lake, ["run=mine-1"], "the case", date(2026, 11, 30) + timedelta(days=999), by="Lena")
    with pytest.raises(HeldError) as caught:
        delete_own_run(reach(runs), "mine-1")
    assert "\n" not in str(caught.value)
    keys = Keys(tmp_path / "keys")
    keys.allow("pia")
    lake = runs.lake
    for section, why in (
        (ApprovalsSection(own_runs="forbid"), "nobody deletes runs of their own here"),
        (keys.section(), "signatures of several people"),
    ):
        runs.lake = lake.configured(approvals=section)
        with pytest.raises(NotOwnRunError, match=why):
            delete_own_run(reach(runs), "mine-1")
    assert count(runs)["mine-1"] == 20
    with pytest.raises(ValueError, match="own_runs is one of allow, approve, forbid"):
        ApprovalsSection(own_runs="perhaps")


@pytest.mark.slow
def test_another_person_approves(runs, capsys, monkeypatch):
    """Where another person has to approve, the command proposes; once approved, the same command deletes."""
    monkeypatch.chdir(runs.folder)
    text = f'[lake]\nuri = "{runs.lake.uri}"\n[spool]\nuri = "{runs.spool}"\n[approvals]\nown_runs = "approve"\n'
    (runs.folder / "ranklake.toml").write_text(text)
    assert command(["delete", "mine-1", "--json"]) == 2
    assert "cannot ask for confirmation without a terminal; add --yes" in capsys.readouterr().err
    assert command(["delete", "mine-1", "--yes"]) == 1
    out = capsys.readouterr().out
    (name,) = ERASURES.register(runs.lake)
    assert f"{name} needs another person's approval: ranklake erase approve {name} --by NAME" in out
    assert count(runs)["mine-1"] == 20
    assert command(["erase", "approve", name, "--by", "Ada"]) == 0
    capsys.readouterr()
    assert command(["delete", "mine-1", "--yes", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["deleted_now"], done["is_clean"]) == (True, True)
    assert command(["delete", "mine-1", "--yes"]) == 0
    assert "deleted before; no data is left" in capsys.readouterr().out


_DYING = """
import os, signal, sys
from pathlib import Path
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.store.lake import Lake
from ranklake.commands import delete
from ranklake.retention.erasure import apply
from ranklake.retention.erasure.subject import Reach
place, name = sys.argv[1].rsplit(":", 1)
module = {"apply": apply, "delete": delete}[place]
setattr(module, name, lambda *given, **more: os.kill(os.getpid(), signal.SIGKILL))
delete.delete_own_run(Reach(Lake.open(sys.argv[2]), Spool(sys.argv[3]), ()), "mine-1")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    ["delete:propose", "delete:approve", "delete:apply", "apply:settle", "apply:erase_files", "apply:certify"],
)
def test_killed_on_the_way(runs, place):
    """Killed at any step, the same command goes on and ends with a certificate."""
    died = subprocess.run([sys.executable, "-c", _DYING, place, runs.lake.uri, str(runs.spool)], check=False)
    assert died.returncode == -signal.SIGKILL
    runs.lake = Lake.open(runs.lake.uri)
    done = delete_own_run(reach(runs), "mine-1")
    assert done.certificate.is_clean
    assert runs.places_of("mine-1") == []
    assert count(runs) == {"hers-1": 20, "nobodys-1": 20, "ours-1": 20}


def test_segments_that_wait(runs):
    """What is not ingested yet cannot be counted: the run stays whole."""
    put_segment(runs.spool, step_rows(5, run="mine-1", incarnation=99))
    with pytest.raises(Exception, match="ranklake ingest"):
        delete_own_run(reach(runs), "mine-1")
    assert count(runs)["mine-1"] == 20


def test_a_run_that_the_lake_does_not_know_yet(runs, capsys):
    """What is in the spool alone is on its way; once ingested, a row of runs says whose it is, or none does."""
    key = {"run": "new-1", "incarnation": 98}
    put_segment(runs.spool, step_rows(5, **key))
    args = ["delete", "new-1", "--yes", "--lake", runs.lake.uri, "--spool", str(runs.spool)]
    assert command(args) == 2
    expected = "new-1: 1 segment of it in the spool is not ingested yet; run 'ranklake ingest', then delete it"
    assert expected in capsys.readouterr().err
    runs.bring(step_rows(5, run="new-1", incarnation=97))
    assert command(args) == 2
    assert "no row of runs says who started it; propose it" in capsys.readouterr().err
    runs.bring(any_rows("runs", 1, user=[ME], **key), "runs")
    assert command(args) == 0
    assert "new-1" not in count(runs)


def test_accounts_under_keys(sealing):
    """Where accounts are stored under keys of people, the run is still its starter's, and nobody else's."""
    users(sealing, ME, "ada")
    with pytest.raises(NotOwnRunError, match="another account started it"):
        delete_own_run(reach(sealing), "exp-2")
    assert delete_own_run(reach(sealing), "exp-1").certificate.is_clean
    assert [row["run"] for row in sealing.rows("runs")] == ["exp-2"]
