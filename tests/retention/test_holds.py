"""Legal holds: what they are about nothing takes, whatever rules say, until their day."""

import json
from datetime import timedelta

import pytest
from governed import any_rows
from retaining import CONTRACTS, TODAY, agree, bring_days, carry_out, days_ago, plan
from segments import step_rows

from ranklake.cli import run
from ranklake.lake.audit.trail import trail
from ranklake.lake.governance.proposals import VoidProposalError
from ranklake.retention.holds import HoldError, all_holds, holds_of, set_hold

LATER = TODAY + timedelta(days=100)


def hold(site, *where, until=LATER, reason="the case of the lost checkpoint"):
    return set_hold(site.lake, CONTRACTS, where, reason, until, "Lena Legal")


def test_a_held_run_stays_and_its_neighbours_go(site):
    """Rows of a held run stay in a partition of which all others go, and go when the hold ended."""
    for incarnation, name in ((7, "a"), (8, "b")):
        site.bring(step_rows(10, run=name, incarnation=incarnation, start=days_ago(100)))
    found = hold(site, "run=a")
    made = plan(site)
    assert [(item.rows, item.part_sha256 is not None) for item in made.items] == [(10, True)]
    agree(site, made.name)
    carry_out(site, made.name)
    assert {row["run"] for row in site.rows("steps")} == {"a"}
    assert plan(site) is None
    assert holds_of(site.lake, LATER - timedelta(days=1)) == [found]
    assert holds_of(site.lake, LATER) == []
    assert [item.rows for item in plan(site, LATER).items] == [10]


def test_a_hold_that_comes_after_the_approval(site):
    """It is looked at again when a plan is applied: the plan is void, and nothing went."""
    bring_days(site, [100, 200])
    made = plan(site)
    agree(site, made.name)
    hold(site, "table=steps", f"date={days_ago(210).date()}..{days_ago(190).date()}")
    with pytest.raises(VoidProposalError, match="is not due under the policies of today"):
        carry_out(site, made.name)
    assert len(site.rows("steps")) == 20
    again = plan(site)
    assert [(TODAY - item.partition_date).days for item in again.items] == [100]
    agree(site, again.name)
    carry_out(site, again.name)
    assert len(site.rows("steps")) == 10
    site.balances()


@pytest.mark.parametrize(
    "where", [("class=raw",), ("kind=traces",), ("table=*",), ("run=r*",), ("date=..2100-01-01", "run=r1")]
)
def test_whatever_it_is_about(site, where):
    """By class, kind, table, run or dates: what it is about stays."""
    bring_days(site, [200])
    hold(site, *where)
    assert plan(site) is None


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (["table=stepz"], "did you mean 'steps'?"),
        (["tabel=steps"], "did you mean 'table'?"),
        (["run=r2"], "there is no run 'r2'; known: r1"),
        (["steps"], "write key=text"),
        (["table="], "write key=text"),
        ([], "what it is about"),
        (["table=cost", "run=r1"], "no table has all of"),
        (["table=steps", "date=2026-13-01"], "is no range of dates"),
        (["table=steps", "date=2026-03-02..2026-03-01"], "is after"),
        (["severity=loud"], "there is no severity 'loud'"),
    ],
)
def test_a_hold_that_would_protect_nothing_is_refused(site, where, said):
    """A misspelt one is not set: nobody would notice until the rows are gone."""
    bring_days(site, [0])
    with pytest.raises(HoldError, match=said.replace("?", r"\?")):
        hold(site, *where)
    assert all_holds(site.lake) == []


def test_days_and_reasons(site):
    """A day that is past, and no reason, are refused; the same hold is set once, by a row of the trail."""
    bring_days(site, [0])
    with pytest.raises(HoldError, match="is past"):
        hold(site, "table=steps", until=TODAY)
    with pytest.raises(HoldError, match="needs a reason"):
        hold(site, "table=steps", reason=" ")
    assert hold(site, "table=steps").name == hold(site, "table=steps").name
    (row,) = [row for row in trail(site.lake) if row["action"] == "retention.hold"]
    assert (row["actor"], row["reason"]) == ("Lena Legal", "the case of the lost checkpoint")


def test_the_commands(site, monkeypatch, capfd):
    """A hold shows in its list, in plans with the rows that it keeps, and in explanations, where it decides."""
    monkeypatch.chdir(site.folder)
    monkeypatch.setenv("RANKLAKE_LAKE", str(site.folder / "lake"))
    site.bring(any_rows("logs", 3, start=days_ago(100)), "logs")
    until = str(LATER)
    assert run(["retain", "hold", "--where", "table=logs", "--reason", "case 7", "--until", until, "--by", "Lena"]) == 0
    name = capfd.readouterr().out.split(":")[0]
    assert run(["retain", "holds", "--json"]) == 0
    assert [one["hold"] for one in json.loads(capfd.readouterr().out)] == [name]
    assert run(["retain", "plan"]) == 0
    out, err = capfd.readouterr()
    assert "nothing is due" in out
    assert f"{name}: table=logs until {until}: case 7" in err
    assert "logs: 3 rows would be due, and legal holds keep them" in err
    assert run(["retain", "plan", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["held_rows"], told["holds"][0]["hold"]) == ({"logs": 3}, name)
    assert run(["retain", "explain", "logs", str(days_ago(100).date()), "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["decided_by"], told["rule"], told["due_from"]) == ("hold", name, None)
    assert run(["retain", "hold", "--where", "table=logz", "--reason", "x", "--until", until]) == 2
