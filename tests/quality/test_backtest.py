"""Backtests: what changed suites would have said of the past, and that nothing is written."""

import json
from datetime import date

import pytest
from governed import under
from segments import step_rows

from ranklake.cli import run
from ranklake.lake.tables.tables import delta_table
from ranklake.quality.backtest import GONE, backtest
from ranklake.quality.check import run_checks

DAY = date(2026, 3, 1)
LOW = """
extends: steps
checks:
  - {id: loss_small, kind: between, columns: [loss], max: 3.0}
"""
HIGH = LOW.replace("3.0", "300.0")
TAKING = LOW.replace("max: 3.0", "max: 3.0, on_fail: quarantine")


def versions(lake):
    """Return the version of every table that there is."""
    handles = {name: delta_table(lake.store, name) for name in lake.contracts()}
    return {name: handle.version() for name, handle in handles.items() if handle is not None}


def of(done, check_id="loss_small"):
    """Return the outcome of one check."""
    (found,) = [one for one in done.outcomes if one.check_id == check_id]
    return found


def test_a_stricter_check_fires_on_what_passed(site):
    """A check that was not there fires on the date it would have; nothing is written, no row is moved."""
    site.bring(step_rows(40))
    run_checks(site.lake)
    strict = under(site.lake, site.overlay(steps=TAKING))
    before = versions(site.lake)
    found = of(backtest(strict, 30))
    assert (found.partitions, found.fired, found.fires, found.newly, found.no_longer) == (1, 0, 1, (DAY,), ())
    assert versions(site.lake) == before
    assert len(site.rows("steps")) == 40


@pytest.mark.slow
def test_rows_that_were_taken_out_are_judged_again(site):
    """At the version that was checked they are there still: a laxer check fires no longer, the same one does."""
    site.bring(step_rows(40))
    strict = under(site.lake, site.overlay(steps=TAKING))
    run_checks(strict)
    assert len(site.rows("steps")) < 40
    assert (of(backtest(strict, 30)).fired, of(backtest(strict, 30)).fires) == (1, 1)
    lax = under(site.lake, site.overlay(steps=HIGH))
    found = of(backtest(lax, 30))
    assert (found.fired, found.fires, found.no_longer) == (1, 0, (DAY,))
    gone = of(backtest(site.lake, 30))
    assert (gone.is_gone, gone.fired, gone.fires, gone.no_longer) == (True, 1, 0, (DAY,))


@pytest.mark.slow
def test_what_cannot_be_read_any_more_is_unknown(site):
    """A version whose files were deleted is told as such, and fires nowhere."""
    site.bring(step_rows(40))
    run_checks(site.lake)
    strict = under(site.lake, site.overlay(steps=LOW))
    for file in (site.folder / "lake" / "tables" / "steps").rglob("*.parquet"):
        file.unlink()
    done = backtest(strict, 30)
    assert [(table, day, reason) for table, day, _, reason in done.unknown] == [("steps", DAY, GONE)]
    assert [one for one in done.outcomes if one.check_id == "loss_small"] == []


@pytest.mark.slow
def test_the_command(site, monkeypatch, capsys):
    """It says so in a table and as JSON, exits 0 whatever fires, and refuses what is no period."""
    site.bring(step_rows(40))
    run_checks(site.lake)
    (site.folder / "ranklake.toml").write_text(f'[contracts]\noverlay = "{site.overlay(steps=LOW)}"\n')
    monkeypatch.chdir(site.folder)
    assert run(["check", "--backtest", "30d", "--lake", site.lake.uri]) == 0
    out = capsys.readouterr().out
    assert "loss_small" in out
    assert "2026-03-01" in out
    assert run(["check", "--backtest", "30d", "--json", "--lake", site.lake.uri]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["newly"] for one in told["outcomes"] if one["check_id"] == "loss_small"] == [["2026-03-01"]]
    assert run(["check", "--backtest", "soon", "--lake", site.lake.uri]) == 2
    assert "30d" in capsys.readouterr().err
