"""Runs at the prompt: found, shown and compared, each number that of its SQL, and bad input answered in a line."""

import json
import math
import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from statistics import fmean, stdev

import pytest
from importing import imported
from recorded_runs import EVIL, RUNS, lake_of_runs
from rollup_inputs import NOON, append

from ranklake.cli import run
from ranklake.insight.runs import facts as run_facts
from ranklake.insight.runs import statements
from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.facts import gather
from ranklake.insight.runs.find import SORTS, RunConditions, find, said_equal, value_of
from ranklake.lake.query.literal import literal
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.views.json_output import json_text
from ranklake.views.result_set import as_json
from ranklake.views.run import run_lines

ROLES = """
roles:
  narrow: {classes: [operational], tables: [run_summary, run_goodput], runs: "run = 'alpha-1'"}
  blind: {classes: [operational], tables: [steps]}
"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake of four runs."""
    return lake_of_runs(tmp_path_factory.mktemp("runs"))


def ranklake(capsys, lake, *args):
    """Return exit code, standard output and standard error of a command on a lake."""
    status = run([*args, "--lake", lake.uri])
    told = capsys.readouterr()
    return status, told.out, told.err


def names(ask, **wanted):
    return [row["run"] for row in find(ask, RunConditions(**wanted)).rows]


@pytest.mark.slow
def test_runs_are_found_by_what_was_said_of_them(lake):
    """Every condition alone, and two together; a name that is in no JSON as it is spelled is found, too."""
    ask = asking(lake)
    assert names(ask) == ["beta", "alpha-3", "alpha-2", "alpha-1"]
    assert names(ask, run="alpha") == ["alpha-3", "alpha-2", "alpha-1"]
    assert names(ask, status="failed") == ["alpha-1"]
    assert names(ask, status="running") == ["beta"]
    assert names(ask, job=EVIL) == ["beta"]
    assert names(ask, team="vision") == ["alpha-2", "alpha-1"]
    assert names(ask, labels={"kind": "base"}, settings={"lr": "1e-3"}) == ["alpha-1"]
    assert names(ask, labels={"größe": "x"}) == ["alpha-3"]
    assert names(ask, settings={"opt.name": "sgd"}) == ["alpha-3"]
    assert names(ask, settings={"lr": "true"}) == ["beta"]
    assert names(ask, settings={"lr": "1"}) == []
    assert names(ask, labels={"it's": "x' OR 'a' = 'a"}, job="' OR TRUE --") == []
    assert names(ask, since=NOON + timedelta(hours=2)) == ["beta", "alpha-3"]
    assert names(ask, until=NOON + timedelta(hours=2)) == ["alpha-2", "alpha-1"]
    assert len(names(ask, since=datetime(1, 1, 1, tzinfo=UTC), until=datetime(9999, 12, 31, tzinfo=UTC))) == len(RUNS)
    assert [row["run"] for row in find(ask, RunConditions(), "status", 1).rows] == ["alpha-1"]
    for sort in SORTS:
        assert len(find(ask, RunConditions(), sort).rows) == len(RUNS)


@pytest.mark.slow
def test_every_number_is_what_its_sql_gives(lake, capsys):
    """What ``--json`` tells of runs, of each, and of several side by side is what its SQL answers by itself."""
    compared = 0
    status, out, _ = ranklake(capsys, lake, "runs", "--json")
    found = json.loads(out)
    assert (status, found["more"], len(found["runs"])) == (0, False, 4)
    told = [json.loads(ranklake(capsys, lake, "show", name, "--json")[1]) for name in RUNS]
    told.append(json.loads(ranklake(capsys, lake, "compare", *RUNS, "--json")[1]))
    listed = [
        {name: value for name, value in row.items() if name not in {"said", "failed_checks", "ended_metrics"}}
        for row in found["runs"]
    ]
    every = [{"sql": found["sql"], "rows": listed}]
    for one in told:
        parts = [part if isinstance(part, list) else [part] for part in one.values()]
        every += [part for some in parts for part in some if isinstance(part, dict) and "sql" in part and part["rows"]]
    for part in every:
        answer = json.loads(as_json(query(lake, part["sql"])))
        assert sorted(map(str, answer)) == sorted(map(str, part["rows"]))
        compared += len(answer)
    assert compared > 60


@pytest.mark.slow
def test_a_comparison_tells_what_differs_and_how_far_repeats_lie_apart(lake, capsys):
    """Settings that differ are named with their values, equal ones are counted; deviation is that of a sample."""
    status, out, _ = ranklake(capsys, lake, "compare", "alpha-1", "alpha-2", "alpha-3", "--json")
    found = json.loads(out)
    assert status == 0
    assert {one["name"]: one["values"] for one in found["settings"]} == {
        "lr": ["0.001", "0.002", "0.001"],
        "opt.name": ["adam", "adam", "sgd"],
        "label kind": ["base", "base", None],
        "label größe": [None, None, "x"],
    }
    assert {one["name"] for one in found["surroundings"]} == {"team"}
    losses = [row["last_loss"] for row in found["summaries"]["rows"]]
    (variance,) = found["variance"]["rows"]
    assert (variance["last_loss_mean"], variance["last_loss_std"]) == pytest.approx((fmean(losses), stdev(losses)))
    assert variance["mfu_ratio_n"] == 0
    out = ranklake(capsys, lake, "compare", "alpha-1", "alpha-2", "alpha-3")[1]
    assert "over 3 runs whose settings differ in 4: mean ± standard deviation" in out
    assert "MFU of alpha-1 is unknown: " in out
    assert "variance unknown: fewer than three" in ranklake(capsys, lake, "compare", "beta", "alpha-1")[1]


@pytest.mark.slow
def test_a_run_is_shown_with_what_is_unknown_and_why(lake, capsys, monkeypatch):
    """One step, a rank that recorded nothing, no MFU, text that plays tricks: shown, each with its reason, as text."""
    status, out, _ = ranklake(capsys, lake, "show", "bet")
    assert status == 0
    assert re.match(r"run beta  [a-z]+-[a-z]+-\d+  running\n", out)
    assert "1 rank of 2 recorded no step here" in out
    assert "MFU         unknown: " in out
    assert "job <b>\\u202eevil\\x1b[2J" in out
    assert "\u202e" not in out
    assert "lovelace" not in out, "nothing of people is shown"
    alpha = ranklake(capsys, lake, "show", "alpha-1")[1]
    assert "error       1 failure, last in step 29" in alpha
    assert "config      lr 0.001, opt.name adam\n" in alpha, "named as --config takes them"
    monkeypatch.setenv("COLUMNS", "40")
    lines = ranklake(capsys, lake, "runs")[1].splitlines()
    assert max(map(len, lines)) <= 40
    assert [line.split()[0] for line in lines[1:5]] == ["beta", "alpha-3", "alpha-2", "alpha-1"]
    assert "  alpha-1: failed" in ranklake(capsys, lake, "compare", "beta", "alpha-1")[1].splitlines()
    monkeypatch.setattr(run_facts, "MOST_RANK_STEPS", 5)
    lines = run_lines(gather(asking(lake), "alpha-2"), 40)
    assert any(line.startswith("a step      910 ms") and "60 rows are too many" in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ["show", "alpha"],
            "3 runs begin with 'alpha', or are called so; write more of the name: alpha-1, alpha-2, alpha-3",
        ),
        (["show", "bata"], "no run 'bata'; did you mean 'beta'?"),
        (["show", ""], "no run ''; known: alpha-1, alpha-2, alpha-3, beta"),
        (["compare", "beta", "bet"], "beta: one run has nothing to be compared with; name another run"),
        (["runs", "--since", "lately"], "'lately' is no time; write a date"),
        (["runs", "--since", "0001-01-01T00:00+14:00"], "is no time"),
        (["runs", "--limit", "9" * 20], "Invalid value for '--limit'"),
        (["runs", "--label", "kind"], "--label: 'kind' is not NAME=VALUE"),
        (["show", "beta", "--role", "x"], "no roles are defined"),
    ],
)
def test_bad_input_is_answered_in_a_line(lake, capsys, args, said):
    """What is wrong, where, and the mend; no traceback."""
    status, out, error = ranklake(capsys, lake, *args)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert said in error


@pytest.mark.slow
def test_a_role_sees_no_more_of_runs_than_in_sql(lake, capsys, tmp_path, monkeypatch):
    """Runs that its condition leaves out are not there; tables that it may not ask are unknown, with the reason."""
    (tmp_path / "roles.yaml").write_text(ROLES)
    (tmp_path / "ranklake.toml").write_text('[sql]\nroles = "roles.yaml"\n')
    monkeypatch.chdir(tmp_path)
    status, out, _ = ranklake(capsys, lake, "runs", "--json", "--role", "narrow")
    assert (status, [row["run"] for row in json.loads(out)["runs"]]) == (0, ["alpha-1"])
    status, out, _ = ranklake(capsys, lake, "show", "alpha", "--role", "narrow")
    assert status == 0
    assert "role narrow does not see it (unknown table 'step_rollup')" in out
    assert ranklake(capsys, lake, "show", "beta", "--role", "narrow")[2] == "ranklake: no run 'beta'; known: alpha-1\n"
    assert "ranklake: role blind does not see it" in ranklake(capsys, lake, "runs", "--role", "blind")[2]
    error = ranklake(capsys, lake, "runs", "--label", "kind=base", "--role", "narrow")[2]
    assert "role narrow does not see it (unknown table 'runs')" in error


@pytest.mark.slow
def test_an_imported_run_is_shown(tmp_path, capsys):
    """A log of another tool gives what it has: steps and loss; what it does not say is unknown, with the reason."""
    lake, log = Lake.create(str(tmp_path / "lake")), tmp_path / "gpt.log"
    said = "[2026-03-01 10:00:0{n}] iteration {n}/ 3 | elapsed time per iteration (ms): 1000.0 | lm loss: {n}.0E+00 |"
    log.write_text("".join(f"{said.format(n=n)}\n" for n in range(1, 4)))
    imported(lake, tmp_path / "spool", "megatron", log, run="gpt")
    run_rollups(lake)
    status, out, _ = ranklake(capsys, lake, "show", "gpt")
    assert status == 0
    assert re.match(r"run gpt  [a-z]+-[a-z]+-\d+  finished\n", out)
    assert "loss by step 1 to 3" in out
    assert "MFU         unknown: " in out
    assert "code        " in out
    assert "GPU         no samples: nothing recorded GPU telemetry in this run" in out


def test_a_lake_without_runs_says_what_to_do(tmp_path, capsys):
    """No run is no error of a list; a run by name is."""
    lake = Lake.create(str(tmp_path / "lake"))
    assert ranklake(capsys, lake, "runs") == (0, "no runs\n", "run 'ranklake pipeline' to bring runs in\n")
    error = ranklake(capsys, lake, "show", "x")[2]
    assert error == "ranklake: no run 'x': the lake tells of no run; run 'ranklake pipeline' first\n"
    shutil.rmtree(tmp_path / "lake")


def test_values_are_what_was_typed():
    """Numbers by what they are worth, truth by its word, text by its letters; a dotted name before what is within."""
    typed = [(0.001, "1e-3"), (8, "8.0"), (True, "True"), ("8", "8"), ("", "")]
    assert all(said_equal(value, said) for value, said in typed)
    other = [
        (True, "1"),
        (1, "true"),
        (None, "None"),
        (None, ""),
        ("8", "8.0"),
        (8, "eight"),
        ([8], "[8]"),
        (1, "1" * 999),
    ]
    assert not any(said_equal(value, said) for value, said in other)
    facts = {"a": {"b": {"c": 1}}, "a.b": 2, "d": 3}
    assert [value_of(facts, name) for name in ("a.b", "a.b.c", "d", "d.e", "a.x")] == [2, 1, 3, None, None]


def test_a_name_that_looks_like_a_template_stays_a_name():
    """Braces in names, and quotes in values, are filled in once: nothing of a value becomes SQL."""
    for name in ("{having}", "{where}", "{runs}", "a{having}b'", "$run"):
        text = statements.summaries(statements.run_condition((name,)), "job = 'x'' OR {where}'")
        assert f"WHERE run IN ({literal(name)})" in text
        assert text.count("job = 'x'' OR {where}'") == 1
        assert literal(name) in statements.variance((name,))


def test_a_loss_that_is_no_number_is_told(lake):
    """What is finite is drawn, and the rest counted; as JSON it is null."""
    found = gather(asking(lake), "alpha-1")
    odd = replace(found, loss=replace(found.loss, rows=({"step": 0, "loss": math.nan}, {"step": 1, "loss": 3.0})))
    assert "NaN or infinite in 1 of 2 parts of the steps" in "\n".join(run_lines(odd, None))
    none = replace(found, loss=replace(found.loss, rows=({"step": 0, "loss": math.inf},)))
    assert "NaN or infinite in 1 of 1 parts of the steps" in "\n".join(run_lines(none, None))
    assert json.loads(json_text({"a": [math.inf, 1.5], "b": odd.loss}), parse_constant=pytest.fail)["a"] == [None, 1.5]


@pytest.mark.slow
def test_steps_whose_loss_was_no_number_are_told(tmp_path):
    """A recorder leaves NaN out, and flags the step: a run that diverged is not told of as if it had just ended."""
    lake = Lake.create(str(tmp_path / "lake"))
    append(lake, "runs", [{"run": name, "ts": NOON, "incarnation": number} for number, name in enumerate("ab")])
    append(lake, "steps", [
        {"run": name, "incarnation": number, "step": step, "ts": NOON + timedelta(seconds=step), "step_time_s": 1.0,
         **({"loss": 2.0} if number and not step else {"non_finite": "loss:nan"})}
        for number, name in enumerate("ab") for step in range(3)
    ])  # fmt: skip
    run_rollups(lake)
    some, none = ("\n".join(run_lines(gather(asking(lake), name), None)) for name in "ba")
    assert "NaN or infinite in 2 steps" in some
    assert "loss        unknown: no rank logged a finite one" in none
    assert "NaN or infinite in 3 steps" in none
