"""Numbers that are made of rows that failed a check are marked wherever runs are listed or shown."""

import json
from datetime import timedelta

import pytest
from rollup_inputs import NOON, append, bring, run_of

from ranklake.cli import run as cli
from ranklake.insight.overview.fleet import fleet_state
from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.caveats import caveats
from ranklake.insight.runs.report import runs_state
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.quality.check import run_checks
from ranklake.views.html import executive_pages
from ranklake.views.html.run_pages import section
from ranklake.views.html.shell import render


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a checked lake: of one run tokens are negative, of another two rows are the same step; a third is sound."""
    made = Lake.create(str(tmp_path_factory.mktemp("caveats") / "lake"))
    runs = {name: run_of(name, seed=seed) for seed, name in enumerate(("sound", "negative", "twice"))}
    for row in runs["negative"]["steps"]:
        row["tokens"] = -100
    again = {**runs["twice"]["steps"][0], "ts": NOON + timedelta(seconds=40), "segment": 1}
    runs["twice"]["steps"].append(again)
    bring(made, *runs.values())
    run_checks(made)
    run_rollups(made)
    run_checks(made)
    return made


def ranklake(capsys, lake, *words):
    """Return what a command prints."""
    assert cli([*words, "--lake", lake.uri]) == 0
    return capsys.readouterr().out


def test_results_name_the_runs_whose_rows_failed(lake):
    """Of rows that fail one by one and of keys that repeat; not of checks that passed."""
    found = query(lake, "SELECT DISTINCT check_id, runs FROM quality_results WHERE \"table\" = 'steps'").to_pylist()
    named = {row["check_id"]: json.loads(row["runs"]) for row in found if row["runs"]}
    assert named == {"tokens_not_negative": ["negative"], "steps_unique": ["twice"]}


def test_a_failed_check_is_told_once_with_all_numbers_that_it_is_in(lake):
    """What fails again in tables that are derived from the rows is no other failure."""
    found = caveats(asking(lake), ("sound", "negative", "twice")).failed
    assert set(found) == {"negative", "twice"}
    (check,) = found["negative"]
    assert (check.table, check.column, check.severity) == ("steps", "tokens", "error")
    assert {"tokens", "tokens_per_s", "mfu_ratio"} <= set(check.numbers)
    assert {"steps", "tokens_per_s", "last_loss"} <= set(found["twice"][0].numbers)


def test_sql_says_what_speaks_against_its_numbers(lake, capsys):
    """Of a table and what is derived from it; not of columns that nobody asked for, nor of the pipeline's tables."""

    def doubts_of(statement):
        assert cli(["sql", statement, "--lake", lake.uri]) == 0
        return capsys.readouterr().err

    direct = doubts_of("SELECT sum(tokens) AS n FROM steps")
    assert "in doubt: steps.tokens fails tokens_not_negative (error) for 60 rows on 2026-03-01" in direct
    assert "ranklake quality why steps" in direct
    assert "tokens_not_negative" in doubts_of("SELECT run, tokens_per_s FROM run_summary")
    assert "tokens_not_negative" not in doubts_of("SELECT min(step) AS n FROM steps")
    assert doubts_of("SELECT count(*) AS n FROM logs") == ""
    assert doubts_of("SELECT count(*) AS n FROM quality_results") == ""


def test_curves_and_pages_of_all_runs_say_it_too(lake, capsys):
    """A curve of the run, and the executive page of its dates; a sound run's curve says nothing."""
    assert cli(["plot", "negative", "tokens", "--lake", lake.uri]) == 0
    assert "in doubt: negative: steps.tokens: tokens_not_negative on 2026-03-01 fails" in capsys.readouterr().err
    assert cli(["plot", "sound", "loss", "--lake", lake.uri]) == 0
    assert "in doubt" not in capsys.readouterr().err
    (page,) = executive_pages.section(fleet_state(lake)).pages
    assert "steps.tokens fails tokens_not_negative" in render(page).decode()


def test_the_list_of_runs_marks_them(lake, capsys):
    """The number in doubt, and none of a sound run; the line below names the check and the command."""
    out = ranklake(capsys, lake, "runs")
    lines = {line.split()[0]: line for line in out.splitlines()}
    (row,) = query(lake, "SELECT tokens_per_s FROM run_summary WHERE run = 'negative'").to_pylist()
    assert f"{row['tokens_per_s']:,.4g} !" in lines["negative"]
    assert "!" not in lines["sound"]
    assert "steps.tokens: tokens_not_negative on 2026-03-01, of negative; ranklake quality why steps" in out
    listed = json.loads(ranklake(capsys, lake, "runs", "--json"))["runs"]
    assert {one["run"]: [check["check_id"] for check in one["failed_checks"]] for one in listed} == {
        "sound": [], "negative": ["tokens_not_negative"], "twice": ["steps_unique"],
    }  # fmt: skip


def test_show_says_what_is_in_doubt(lake, capsys):
    """A line a check, with the numbers."""
    out = ranklake(capsys, lake, "show", "negative")
    assert (
        "check       error: steps.tokens: tokens_not_negative on 2026-03-01 failed for 60 rows; in doubt: tokens" in out
    )
    assert "check  " not in ranklake(capsys, lake, "show", "sound")


def test_pages_mark_them(lake):
    """On the list and on the run's own page, with the check; not on those of a sound run."""
    pages = {page.title: render(page).decode() for page in section(runs_state(lake)).pages}
    assert 'title="steps.tokens: tokens_not_negative on 2026-03-01"' in pages["Runs"]
    assert "a check failed: steps.tokens: tokens_not_negative" in pages["negative"]
    assert "a check failed" not in pages["sound"]


def test_what_passes_again_is_no_longer_in_doubt(lake):
    """The last result of a check counts."""
    (row,) = query(
        lake, "SELECT * FROM quality_results WHERE runs = '[\"negative\"]' AND \"table\" = 'steps'"
    ).to_pylist()
    later = {**row, "status": "passed", "rows_failed": 0, "runs": None, "ts": row["ts"] + timedelta(minutes=1)}
    append(lake, "quality_results", [{**later, "check_run": "later"}])
    assert "negative" not in caveats(asking(lake), ("negative",)).failed or all(
        check.table != "steps" for check in caveats(asking(lake), ("negative",)).failed["negative"]
    )


def test_runs_side_by_side_are_marked_as_well(lake, capsys):
    """Numbers in doubt, means that are made of them, and which check of which run; sound ones are bare."""
    lines = ranklake(capsys, lake, "compare", "sound", "negative", "twice").splitlines()
    cells = {line.split("  ")[0]: line.split("  ")[1:] for line in lines}
    tokens = [cell.strip() for cell in cells["tokens"] if cell.strip()]
    assert [cell.endswith(" !") for cell in tokens] == [False, True, True]
    assert sum(line.startswith("! a check failed (") for line in lines) == 2
    (mean,) = (line for line in lines if line.startswith("  tokens/s"))
    assert mean.endswith(" !")
    (sound, *_) = ranklake(capsys, lake, "compare", "sound", "negative", "--json").splitlines()
    assert json.loads(sound)["caveats"]["failed"]["negative"]
