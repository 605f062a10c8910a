"""Runs whose loss diverged, whose metrics were logged by step alone or under other names, and runs of agents."""

import json
import math
import re
import shlex
from contextlib import suppress
from datetime import timedelta

import pytest
from bringing import bring as bring_in
from rollup_inputs import NOON, append, bring, computed, context, run_of

from ranklake import capture
from ranklake.capture.node.agent import Agent
from ranklake.capture.node.agent_run import AgentRun
from ranklake.cli import run as cli
from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.find import NoSuchRunError, find_run
from ranklake.insight.runs.report import runs_state
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.lookups import STEP_METRICS
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.views.html.run_pages import section
from ranklake.views.html.shell import render


def logged(name, values, *, run="r1", rank=0, begin=0, every_s=1.0):
    """Return rows of scalars: one value a step; NaN and infinities are flags, as capture stores them."""
    flags = {math.inf: "+inf", -math.inf: "-inf"}
    return [
        {
            "run": run,
            "rank": rank,
            "step": begin + n,
            "ts": NOON + timedelta(seconds=n * every_s),
            "metric": name,
            "value": value if math.isfinite(value) else None,
            "value_flag": None if math.isfinite(value) else flags.get(value, "nan"),
        }
        for n, value in enumerate(values)
    ]


def stepped(losses, run="r1", rank=0):
    """Return rows of steps, as capture stores them: what is not finite is NULL, and named."""
    return [
        {
            "run": run,
            "rank": rank,
            "step": n,
            "ts": NOON + timedelta(seconds=n),
            "step_time_s": 0.9,
            "loss": loss if math.isfinite(loss) else None,
            "non_finite": None if math.isfinite(loss) else "grad_norm:nan,loss:nan",
        }
        for n, loss in enumerate(losses)
    ]


def test_a_loss_that_is_nan_on_one_rank_has_no_mean():
    """A mean over ranks of which one is NaN is none, and the step says so; others stay as they are."""
    ctx = context(steps=stepped([3.0, 2.0]) + stepped([1.0, math.nan], rank=1))
    first, second = computed(ctx, "step_rollup").sort_by("step").to_pylist()
    assert (first["mean_loss"], first["loss_flag"], first["loss_ranks"]) == (2.0, None, 2)
    assert (second["mean_loss"], second["loss_flag"], second["loss_ranks"]) == (None, "nan", 0)


@pytest.mark.parametrize("column", ["loss", "lr", "grad_norm"])
def test_every_name_of_a_column_is_found(column):
    """Whatever of its names a metric has, and however it is spelled, it is what the step lacks."""
    of = {"loss": "mean_loss", "grad_norm": "max_grad_norm"}.get(column, column)
    spelled = [*STEP_METRICS[column], *(name.replace("_", "/", 1).title() for name in STEP_METRICS[column])]
    ctx = context(scalars=[row for name in [*spelled, f"eval/{column}"] for row in logged(name, [0.5], run=name)])
    found = {row["run"]: row[of] for row in computed(ctx, "step_rollup").to_pylist()}
    assert found == {**dict.fromkeys(spelled, 0.5), f"eval/{column}": None}


def test_the_rows_of_steps_go_before_what_was_logged_beside_them():
    """A step's own loss counts; what it lacks comes from scalars."""
    beside = logged("train/loss", [9.0, 9.0, 9.0]) + logged("learning_rate", [0.1, 0.2]) + logged("reward", [1.0] * 9)
    ctx = context(steps=stepped([3.0, math.nan]), scalars=beside)
    rows = computed(ctx, "step_rollup").sort_by("step").to_pylist()
    assert [(row["step"], row["mean_loss"], row["loss_flag"]) for row in rows] == [
        (0, 3.0, None),
        (1, None, "nan"),
        (2, 9.0, None),
    ]
    assert [row["lr"] for row in rows] == pytest.approx([0.1, 0.2, None])


def test_of_two_names_in_a_step_the_first_counts():
    """`train/loss` counts, not `loss`; of one name the value that was logged last."""
    again = [{**row, "ts": NOON + timedelta(minutes=1), "value": 2.0} for row in logged("train/loss", [1.0])]
    ctx = context(scalars=logged("loss", [7.0]) + again + logged("train/loss", [1.0]))
    assert computed(ctx, "step_rollup")["mean_loss"].to_pylist() == [2.0]


def test_a_value_beyond_what_a_float_holds_is_infinite():
    """A loss of 1e300 overflows the column: it is told as infinite, and nothing fails."""
    ctx = context(scalars=logged("loss", [1.0, 1e300, -1e300]))
    rows = computed(ctx, "step_rollup").sort_by("step").to_pylist()
    assert [row["loss_flag"] for row in rows] == [None, "+inf", "-inf"]


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake of runs as people record them, beside that of a node's agent."""
    folder = tmp_path_factory.mktemp("logged")
    spool = str(folder / "spool")
    losses = {
        "good": [5, 4, 3, 2, 1],
        "diverged": [1, 0.5, 0.1, math.nan, math.nan],
        "infinite": [1, 0.5, math.inf],
        "recovered": [1, math.nan, 0.4, 0.3],
    }
    for name, values in losses.items():
        with capture.start(job="j", run=name, spool=spool, local_dir=folder / "local", samplers="off") as run:
            for n, loss in enumerate(values):
                with run.step(n, tokens=100):
                    run.log(loss=loss, lr=0.1)
    with capture.start(job="j", run="logged", spool=spool, local_dir=folder / "local", samplers="off") as run:
        for n in range(5):
            run.log({"train_loss": 3.0 - n, "learning_rate": 0.1, "gradient_norm": 2.0, "reward": n}, step=10 * n)
    raised = capture.start(job="other", run="raised", spool=spool, local_dir=folder / "local", samplers="off")
    with suppress(ValueError), raised as run:
        for n in range(3):
            with run.step(n, tokens=100):
                run.log(loss=3.0 - n)
                if n == 2:
                    raise ValueError("no more")
    node = AgentRun(folder / "local", spool, hand_over_s=0.0)
    node.tick()
    node.close()
    Agent(folder / "local", spool).look(pack_now=True)
    made = Lake.create(str(folder / "lake"))
    bring_in(made, spool)
    run_rollups(made)
    return made


def ranklake(capsys, lake, *words):
    """Return what a command prints."""
    assert cli([*words, "--lake", lake.uri]) == 0
    return capsys.readouterr().out


def test_a_diverged_run_is_not_the_best(lake, capsys):
    """Runs whose last loss is no finite number come last, and say so; one that recovered has the loss it ended with."""
    rows = json.loads(ranklake(capsys, lake, "runs", "--job", "j", "--sort", "loss", "--json"))["runs"]
    assert [row["run"] for row in rows[:3]] == ["logged", "recovered", "good"]
    assert {row["run"]: row["last_loss_flag"] for row in rows[3:]} == {"diverged": "nan", "infinite": "+inf"}
    assert [row["last_loss"] for row in rows] == [-1.0, pytest.approx(0.3), 1.0, None, None]
    assert {row["run"]: row["non_finite_loss_step"] for row in rows} == {
        "logged": None, "recovered": 1, "good": None, "diverged": 3, "infinite": 2,
    }  # fmt: skip


def test_a_run_of_metrics_logged_by_step_has_steps_and_losses(lake, capsys):
    """Without `run.step`, the steps are those that were logged; nothing is said of times that nobody took."""
    (row,) = json.loads(ranklake(capsys, lake, "runs", "logged", "--json"))["runs"]
    assert (row["status"], row["steps"], row["first_step"], row["last_step"]) == ("finished", 5, 0, 40)
    assert (row["last_loss"], row["goodput_ratio"], row["mean_step_time_s"]) == (-1.0, None, None)
    told = query(lake, "SELECT * FROM goodput WHERE run = 'logged'").to_pylist()[0]
    kinds = ("init", "productive", "checkpoint", "evaluation", "restart", "lost_work", "stall", "unattributed")
    assert sum(told[f"{kind}_ns"] or 0 for kind in kinds) == told["wall_ns"]
    assert (told["steps"], told["productive_ns"]) == (5, None)
    why = query(lake, "SELECT unavailable FROM run_goodput WHERE run = 'logged'").to_pylist()[0]["unavailable"]
    assert "no step of an attempt was timed" in json.loads(why)["goodput_ratio"]


def test_a_step_whose_block_raised_is_counted_nowhere(lake, capsys):
    """What it logged is kept as the last loss; steps are those that ended, in the summary as in goodput."""
    (row,) = json.loads(ranklake(capsys, lake, "runs", "raised", "--json"))["runs"]
    assert (row["steps"], row["first_step"], row["last_step"], row["last_loss"]) == (2, 0, 1, 1.0)
    told = query(lake, "SELECT sum(steps) AS steps FROM goodput_daily WHERE run = 'raised'").to_pylist()
    assert told == [{"steps": 2}]


def test_show_says_what_to_do_next(lake, capsys):
    """What names a job, how FLOPs come to be known, and which query has the traceback of what nobody caught."""
    assert cli(["show", "other", "--lake", lake.uri]) == 2
    assert "no run 'other'; it is a job: ranklake runs --job other" in capsys.readouterr().err
    assert cli(["plot", "good", "diverged", "loss", "--lake", lake.uri]) == 2
    assert "diverged: it is a run, and no metric; write --with diverged to add it" in capsys.readouterr().err
    assert "run.count_flops counts them" in ranklake(capsys, lake, "show", "good")
    out = ranklake(capsys, lake, "show", "raised")
    (command,) = re.findall(r"tracebacks: ranklake (.*)", out)
    assert "ValueError: no more" in ranklake(capsys, lake, *shlex.split(command))


def test_a_series_is_found_by_the_name_of_its_column(lake, capsys):
    """`run.log(loss=…)` fills a column of steps: `series loss` shows it, as `plot` does."""
    of_run = ("--run", "good", "--format", "csv")
    rows = ranklake(capsys, lake, "series", "loss", *of_run).splitlines()
    assert [float(row.split(",")[5]) for row in rows[1:6]] == [5, 4, 3, 2, 1]
    assert ranklake(capsys, lake, "series", "train/loss", *of_run).splitlines()[:6] == rows[:6]


def test_time_between_logged_steps_is_no_stall():
    """Steps that were logged each two minutes, without times, do not stall: what is between them is unknown."""
    ctx = context(scalars=logged("loss", [3.0, 2.0, 1.0], every_s=120.0), events=[{"ts": NOON, "event": "run_start"}])
    ctx.register_view("steps_logged", ctx.from_arrow(computed(ctx, "step_rollup")))
    ctx.deregister_table("step_rollup")
    ctx.register_view("step_rollup", ctx.table("steps_logged"))
    (row,) = computed(ctx, "goodput_daily").to_pylist()
    assert (row["stall_ns"], row["untimed_ns"], row["wall_ns"]) == (0, 240 * 10**9, 240 * 10**9)


def test_runs_of_agents_are_in_no_account_of_runs(lake):
    """What a node's agent records is stored, and neither counted, billed nor listed as training."""
    assert query(lake, "SELECT run FROM runs WHERE job = 'ranklake-agent'").num_rows == 1
    assert query(lake, "SELECT run FROM events WHERE starts_with(run, 'ranklake-agent-')").num_rows > 0
    for table in ("attempt_facts", "goodput_daily", "goodput", "run_goodput", "run_summary", "cost"):
        found = set(query(lake, f"SELECT DISTINCT run FROM {table}")["run"].to_pylist())
        assert found == {"good", "diverged", "infinite", "recovered", "logged", "raised"}, table


def test_a_run_that_is_called_like_an_agent_is_a_run(tmp_path):
    """The name alone begins so: what is not made of the agent's job is somebody's run."""
    made = Lake.create(str(tmp_path / "lake"))
    bring(made, run_of("ranklake-agents"), run_of("my-ranklake-agent-1", seed=1))
    append(made, "runs", [{"run": "ranklake-agent-n1", "job": "ranklake-agent", "ts": NOON, "device_count": 8}])
    run_rollups(made)
    found = query(made, "SELECT run FROM run_summary ORDER BY run")["run"].to_pylist()
    assert found == ["my-ranklake-agent-1", "ranklake-agents"]


def test_every_metric_that_was_recorded_is_plotted_and_printed(lake, capsys):
    """Under the name that it was recorded by, that of the registry, or its column; NaN is shown where it was."""
    for name in ("loss", "train/loss", "train_loss", "learning_rate", "lr", "grad_norm", "gradient_norm", "reward"):
        assert name in ranklake(capsys, lake, "plot", "logged", name).splitlines()[0]
    for name in ("loss", "train/loss", "lr", "train/lr", "tokens"):
        assert ranklake(capsys, lake, "plot", "good", name)
    assert "2 points are not finite, the first at 3" in ranklake(capsys, lake, "plot", "diverged", "loss")
    out = ranklake(capsys, lake, "series", "train_loss", "--run", "logg")
    assert "train_loss in an unknown unit, not registered" in out
    assert out.count("| train_loss |") == 5


def test_show_says_where_a_loss_is_not_finite(lake, capsys):
    """The first step, and what the last was."""
    assert "not finite first in step 3; the last is NaN" in ranklake(capsys, lake, "show", "diverged")
    assert "not finite first in step 1, and finite at the end" in ranklake(capsys, lake, "show", "recovered")
    assert "NaN" in next(line for line in ranklake(capsys, lake, "runs").splitlines() if line.startswith("diverged"))


def test_pages_mark_where_a_loss_is_not_finite_and_name_what_they_leave_out(lake):
    """The list has NaN for a number, the loss's chart a line wherever it was; metrics without a chart are named."""
    pages = {page.title: render(page).decode() for page in section(runs_state(lake)).pages}
    assert 'title="not finite first in step 3"' in pages["Runs"]
    assert "NaN or infinite first in step 3" in pages["diverged"]
    assert "NaN or infinite first" not in pages["good"]
    assert "No curves" not in pages["logged"]
    assert "no step of an attempt was timed" in pages["logged"]


def test_runs_are_found_by_what_people_call_them(lake, tmp_path, capsys):
    """By the name in whatever spelling, by the beginning of it, by tag and owner: at the prompt and on pages."""
    made = Lake.create(str(tmp_path / "lake"))
    whole = run_of("r-1")
    whole["runs"][0] |= {"team": "vision", "user": "ada"}
    bring(made, whole, run_of("r-2", seed=1))
    said = {"ts": NOON, "run": "r-1", "attempt": 0, "rank": 0, "source": "person"}
    append(made, "annotations", [{**said, "kind": "name", "value": "Zoë's größter Lauf"},
                                 {**said, "kind": "tag", "key": "baseline"}])  # fmt: skip
    append(made, "annotations", [{**said, "run": "r-2", "kind": "name", "value": "Zoë's größter Lauf 2"}])
    run_rollups(made)
    for name in ("Zoë's größter Lauf", "zoe\u0308's GRÖSSTER lauf", "r-1"):
        assert find_run(asking(made), name) == "r-1"
    assert find_run(asking(made), "zoë's größter lauf 2") == "r-2"
    with pytest.raises(NoSuchRunError, match="2 runs begin"):
        find_run(asking(made), "Zoë's")
    for words in (["Zoë's größter Lauf"], ["--tag", "baseline"], ["--team", "vision"], ["--user", "ada"]):
        assert [row["run"] for row in json.loads(ranklake(capsys, made, "runs", *words, "--json"))["runs"]] == ["r-1"]
    found = section(runs_state(made))
    (entry,) = (one.name for one in found.entries if one.name.startswith("r-1"))
    assert entry == "r-1 · Zoë's größter Lauf · team vision · baseline"
    assert "Zoë&#39;s größter Lauf · team vision · baseline" in render(found.pages[0]).decode()
    assert cli(["what-if", "Zoë's größter Lauf", "--lake", made.uri]) == 2
    assert "run r-1: no spans of any step" in capsys.readouterr().err
