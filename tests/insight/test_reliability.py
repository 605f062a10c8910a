"""Expected ETTR and advice on the checkpoint interval: against a simulation, published figures, and a run's rollup."""

import json
import math
import random

import pytest
from click.testing import CliRunner
from lake_fixtures import lake
from rollup_inputs import NOON, append, rows

from ranklake.cli import cli
from ranklake.insight.runs.asking import asking
from ranklake.insight.slo.evaluation import (
    best_checkpoint_interval_s,
    expected_ettr,
    reliability_of,
    time_between_failures_s,
)
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract

__all__ = ["lake"]
HOUR = 3600.0


def simulated(between_s, interval_s, restart_s, queue_s, run_s, seed=1):
    """Return the ETTR of a run that fails at random, by its clock: work since the last checkpoint is lost."""
    rng = random.Random(seed)
    clock = saved = 0.0
    while saved < run_s:
        clock += queue_s
        left = rng.expovariate(1 / between_s)
        if left <= restart_s:
            clock += left
            continue
        done = min(left - restart_s, run_s - saved)
        clock += restart_s + done
        saved = run_s if saved + done >= run_s else saved + done // interval_s * interval_s
    return run_s / clock


@pytest.mark.parametrize(
    ("between_s", "interval_s", "restart_s", "queue_s"),
    [(20 * HOUR, HOUR, 300, 0), (5 * HOUR, 300, 600, 1200), (2 * HOUR, 900, 300, 60)],
)
def test_the_formula_is_what_a_simulated_run_comes_to(between_s, interval_s, restart_s, queue_s):
    """Within two percent, over three thousand failures."""
    run_s = 3000 * between_s
    expected = expected_ettr(between_s, interval_s, restart_s, queue_s, run_s)
    assert simulated(between_s, interval_s, restart_s, queue_s, run_s) == pytest.approx(expected, rel=0.02)


def test_published_figures_of_metas_clusters():
    """16,384 GPUs on 2,048 nodes fail every 1.8 h; 16,000 that save each five minutes have an ETTR of 0.93."""
    assert round(time_between_failures_s(6.50, 2048) / HOUR, 1) == 1.8
    assert round(expected_ettr(time_between_failures_s(6.50, 2000), 300, 300), 2) == 0.93


def test_limits():
    """Without failures only the start costs; a run that fails before it gets on never does."""
    assert expected_ettr(math.inf, HOUR, 300, 0, HOUR) == pytest.approx(HOUR / (HOUR + 300))
    assert expected_ettr(600, HOUR, 300) == 0
    assert best_checkpoint_interval_s(0, HOUR) is None
    assert best_checkpoint_interval_s(60, math.inf) is None


def test_the_best_interval_is_the_best():
    """Of intervals around it, each loses more to saving and failures together."""
    between_s, save_s = 4 * HOUR, 60.0
    best = best_checkpoint_interval_s(save_s, between_s)

    def lost(interval_s):
        return save_s / interval_s + interval_s / 2 / between_s

    assert all(lost(best) <= lost(best * factor) for factor in (0.5, 0.9, 1.1, 2))


def goodput(lake, **columns):
    """Give a run a row of its rollups."""
    for table in ("run_summary", "run_goodput"):
        schema = arrow_schema(contract(table))
        row = {field.name: 0 for field in schema if not field.nullable}
        row |= {"run": "r1", "ts": NOON, "end_ts": NOON, "date": NOON.date(), "status": "failed"}
        append(lake, table, rows(table, [row | (columns if table == "run_goodput" else {"world_size": 1})]))


def test_preemptions_count_as_failures_do(lake):
    """Two failures and two preemptions in eight hours: one each two hours, and saving each 15 minutes is best."""
    goodput(lake, failures=2, preemptions=2, under_way_ns=8 * 3600 * 10**9, checkpoint_mean_s=60.0)
    known = reliability_of(asking(lake), "r1")
    assert known.between_interruptions_s == 2 * HOUR
    assert known.best_interval_s == pytest.approx(929.5, abs=0.1)
    assert reliability_of(asking(lake), "r2") is None


def told(*arguments):
    """Return what the command says, as JSON."""
    done = CliRunner().invoke(cli, ["reliability", *arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_the_command_is_a_calculator(tmp_path, monkeypatch):
    """Without a lake; its words are those of its JSON. Neither a run nor nodes is an error of one line."""
    monkeypatch.chdir(tmp_path)
    facts = told("--nodes", "2048", "--every-s", "300")
    assert facts["between_interruptions_s"] / HOUR == pytest.approx(1.8029, abs=1e-4)
    assert facts["expected_ettr_ratio"] == pytest.approx(0.9307, abs=1e-4)
    said = CliRunner().invoke(cli, ["reliability", "--nodes", "2048", "--every-s", "300"]).output
    assert "an interruption each  1.8 h" in said
    assert "expected ETTR         0.931" in said
    nothing = CliRunner().invoke(cli, ["reliability"])
    assert (nothing.exit_code != 0, "name a run, or give --nodes" in str(nothing.exception or nothing.output)) == (
        True,
        True,
    )


@pytest.mark.parametrize(
    "words",
    ["--failures inf", "--failures nan", "--save-s nan", "--every-s 0", "--restart-s inf", "--nodes 99999999999"],
)
def test_what_is_no_number_is_refused_in_a_line(words):
    """Nothing is reckoned with it."""
    done = CliRunner().invoke(cli, ["reliability", "--nodes", "8", *words.split()])
    assert (done.exit_code, "Invalid value for '" in done.output) == (2, True)


def test_the_command_reads_a_runs_own(lake):
    """Its interval, its failures, and the best interval for them."""
    goodput(
        lake,
        failures=4,
        preemptions=0,
        under_way_ns=8 * 3600 * 10**9,
        checkpoint_mean_s=60.0,
        checkpoint_interval_s=1800.0,
    )
    facts = told("r1", "--lake", lake.uri)
    assert (facts["run"], facts["checkpoint_interval_s"]) == ("r1", 1800.0)
    assert facts["best_checkpoint_interval_s"] == pytest.approx(929.5, abs=0.1)
    assert facts["expected_ettr_ratio"] == pytest.approx(1 - (300 + 900) / (2 * HOUR))
