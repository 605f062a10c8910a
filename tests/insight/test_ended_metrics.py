"""Metrics that are to be recorded no more: told by queries, runs, comparisons and pages, and by nothing else."""

import json
import shutil
import warnings

import pytest
from governed import under
from overlays import written
from recorded_runs import lake_of_runs
from rollup_inputs import NOON, append

from ranklake.cli import run as command
from ranklake.client import sql
from ranklake.insight.ended_metrics import ended_metrics, ended_of_runs
from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.report import runs_state
from ranklake.lake.query.role_file import load_role
from ranklake.lake.rollups.life.register import link_to, move
from ranklake.lake.store.lake import Lake
from ranklake.views.html.run_pages import href, section
from ranklake.views.html.shell import render

METRICS = """version: 1
metrics:
  - {name: own/old, unit: ms, kind: gauge, owner: team, sampling: step, doc: Old., aka: [own/older]}
  - {name: own/new, unit: s, kind: gauge, owner: team, sampling: step, doc: New.}
  - {name: own/gone, unit: s, kind: gauge, owner: team, sampling: step, doc: Gone., status: retired}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return the folder of a lake whose runs recorded metrics of their own."""
    lake = lake_of_runs(tmp_path_factory.mktemp("runs"))
    values = [("alpha-1", "own/old"), ("alpha-2", "own/older"), ("alpha-1", "own/new"), ("alpha-3", "own/gone")]
    append(lake, "scalars", [
        {"run": run, "ts": NOON, "incarnation": 9, "slot": slot, "step": 1, "metric": metric, "kind": "gauge",
         "value": 1.0}
        for slot, (run, metric) in enumerate(values)
    ])  # fmt: skip
    return lake.uri


@pytest.fixture
def lake(runs, tmp_path, monkeypatch):
    """Return a copy of it with their registry, which is configured: one of them is retired there, the others active."""
    shutil.copytree(runs, tmp_path / "lake")
    written(tmp_path / "own", {"metrics.yaml": METRICS})
    (tmp_path / "ranklake.toml").write_text(f'[contracts]\noverlay = "{tmp_path / "own"}"\n')
    monkeypatch.setenv("RANKLAKE_CONFIG", str(tmp_path / "ranklake.toml"))
    return under(Lake.open(str(tmp_path / "lake")), tmp_path / "own")


def day_of(lake, name):
    return next(each.since for each in ended_metrics(lake) if each.metric == name)


def deprecate(lake):
    move(lake, "own/old", "deprecated", "Ada", links=[link_to(lake, "own/old", "own/new")])
    return f"own/old is deprecated since {day_of(lake, 'own/old')}; use own/new"


def test_notes_say_what_became_of_a_metric(lake):
    """In each of its states; what is active says nothing."""
    assert [each.note for each in ended_metrics(lake)] == ["own/gone is retired"]
    note = deprecate(lake)
    assert [each.note for each in ended_metrics(lake)] == ["own/gone is retired", note]
    move(lake, "own/old", "retired", "Ada")
    move(lake, "own/old", "sunset", "Ada")
    move(lake, "own/gone", "sunset", "Ada")
    day = day_of(lake, "own/old")
    notes = [f"own/gone is sunset since {day}, and its rows are due to go"]
    notes += [f"own/old is sunset since {day}, and its rows are due to go; use own/new"]
    assert [each.note for each in ended_metrics(lake)] == notes


def test_runs_that_recorded_it_are_known_also_by_its_other_names_and_its_column(lake):
    ask, runs = asking(lake), ["alpha-1", "alpha-2", "alpha-3", "beta"]
    deprecate(lake)
    move(lake, "train/loss", "deprecated", "Ada")
    recorded = ended_of_runs(ask, ended_metrics(lake), runs)
    assert {run: [each.metric for each in metrics] for run, metrics in recorded.items()} == {
        "alpha-1": ["own/old", "train/loss"], "alpha-2": ["own/old", "train/loss"],
        "alpha-3": ["own/gone", "train/loss"], "beta": ["train/loss"],
    }  # fmt: skip
    assert ended_of_runs(ask, ended_metrics(lake), []) == {}


def test_the_commands_say_it(lake, capsys):
    """``runs`` and ``compare`` a line a metric, ``show`` a line, each with JSON; nothing of runs without it."""
    note = deprecate(lake)

    def out(*words):
        assert command([*words, "--lake", lake.uri]) == 0
        return capsys.readouterr().out

    assert f"metric {note} (in alpha-1, alpha-2)\n" in out("runs")
    assert "own/old" not in out("runs", "alpha-3")
    assert f"metric      {note}\n" in out("show", "alpha-1")
    assert "metric      own/gone is retired\n" in out("show", "alpha-3")
    assert f"metric {note} (in alpha-1, alpha-2)\n" in out("compare", "alpha-1", "alpha-2")
    assert "own/old" not in out("compare", "alpha-3", "beta")
    assert json.loads(out("show", "alpha-1", "--json"))["ended_metrics"][0]["replaced_by"] == ["own/new"]
    assert [each["ended_metrics"] for each in json.loads(out("runs", "beta", "--json"))["runs"]] == [[]]
    assert list(json.loads(out("compare", "alpha-1", "beta", "--json"))["ended_metrics"]) == ["alpha-1"]


def test_pages_say_it_and_are_written_anew(lake):
    """Those of runs that recorded it; a mark changes, so that a page which is there is replaced."""
    before = runs_state(lake)
    move(lake, "own/old", "deprecated", "Ada")
    note = f"own/old is deprecated since {day_of(lake, 'own/old')}"
    after = runs_state(lake)
    assert all(before.marks[run] != after.marks[run] for run in before.marks)
    pages = {page.path: page for page in section(after).pages}
    assert note in render(pages[href("alpha-1")]).decode()
    assert "is deprecated" not in render(pages[href("alpha-3")]).decode()


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        ("SELECT count(*) FROM scalars WHERE metric = 'own/old'", ["own/old"]),
        ("SELECT count(*) FROM scalars WHERE metric IN ('own/older', 'own/gone')", ["own/gone", "own/old"]),
        ("SELECT count(*) FROM series WHERE metric = 'own/old'", ["own/old"]),
        ("SELECT count(*) FROM scalars WHERE metric = $name", ["own/old"]),
        ("SELECT count(*) FROM scalars WHERE metric = 'own/new'", []),
        ("SELECT 'own/old' FROM runs", []),
        ("SELECT avg(lr) FROM steps", ["train/lr"]),
        ("SELECT avg(step) FROM steps", []),
    ],
)
def test_queries_are_told(lake, capsys, text, notes):
    """What they name in quotes, by a parameter, or by the column; in Python as a warning."""
    deprecate(lake)
    move(lake, "train/lr", "deprecated", "Ada")
    params = {"name": "own/old"} if "$name" in text else None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sql(text, lake, params=params)
    told = [str(each.message) for each in caught if "the query names" in str(each.message)]
    assert [line.split()[3] for line in told] == notes
    given = ["--param", "name=own/old"] if params else []
    assert command(["sql", text, *given, "--lake", lake.uri]) == 0
    assert [line for line in capsys.readouterr().err.splitlines() if "the query names" in line] == told


def test_a_role_is_told_what_it_sees_and_not_what_took_its_place(lake, tmp_path):
    """Of its own runs; the other name may be one that only others' runs have."""
    deprecate(lake)
    runs = "run = 'alpha-2'"
    one = f'one: {{classes: [operational], tables: [scalars, distributions, runs], runs: "{runs}"}}'
    (tmp_path / "roles.yaml").write_text(f"roles:\n  {one}\n")
    role = load_role(tmp_path / "roles.yaml", "one", lake.contracts())
    ended = ended_metrics(lake, role)
    recorded = ended_of_runs(asking(lake, role), ended, ["alpha-1", "alpha-2"])
    assert {run: [each.note.partition(" since")[0] for each in some] for run, some in recorded.items()} == {
        "alpha-2": ["own/old is deprecated"]
    }
    assert all("own/new" not in each.note for each in ended)
