"""``ranklake plot``: curves are what their SQL gives, over any axis, in any width; what cannot be drawn says why."""

import itertools
import json
import math
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest
from recorded_runs import EVIL, lake_of_runs
from rollup_inputs import NOON, append

from ranklake.cli import run
from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.curves import PARTS, curves, plot_metrics, smooth_values
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.views.run_plot import plot_lines

NAN = float("nan")
ODD = {
    "gaps": [5.0, 4.0, NAN, float("inf"), 3.0, 2.5, 0.0, -1.0],
    "far": [3.0, 2.0, 1.0],
}
ROLES = """
roles:
  narrow: {tables: [run_summary], classes: [operational]}
"""


def many_steps(name, count):
    """Return rows of ``steps`` of one rank as a table."""
    schema = arrow_schema(contract("steps"))
    step = np.arange(count)
    columns = {
        "run": [name] * count,
        "attempt": np.zeros(count, np.int32),
        "rank": np.zeros(count, np.int32),
        "step": step,
        "incarnation": np.full(count, 99),
        "segment": np.zeros(count, np.int32),
        "slot": step.astype(np.int32),
        "ts": np.datetime64(NOON.replace(tzinfo=None), "us") + step * np.timedelta64(1000, "us"),
        "date": [NOON.date()] * count,
        "step_time_s": np.full(count, 0.001, np.float32),
        "loss": (5 - step / count).astype(np.float32),
        "tokens": np.full(count, 10),
    }
    empty = pa.nulls(count)
    return pa.table(
        [pa.array(columns[one.name], one.type) if one.name in columns else empty.cast(one.type) for one in schema],
        schema=schema,
    )


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake of four runs, one with gaps, and one whose steps are near 2^62."""
    lake = lake_of_runs(tmp_path_factory.mktemp("plot"))
    for number, (name, losses) in enumerate(ODD.items()):
        first = 2**62 - len(losses) if name == "far" else 0
        append(lake, "runs", [{"run": name, "incarnation": 50 + number, "ts": NOON, "world_size": 1}])
        append(lake, "steps", [
            {"run": name, "incarnation": 50 + number, "step": first + step if step else 0, "loss": loss,
             "step_time_s": 1.0, "ts": NOON + timedelta(seconds=step)}
            for step, loss in enumerate(losses)
        ])  # fmt: skip
    append(lake, "runs", [{"run": "idle", "incarnation": 60, "ts": NOON, "world_size": 1}])
    append(lake, "scalars", [
        {"run": "alpha-1", "incarnation": 10, "metric": metric, "step": step, "value": float(step + 1),
         "ts": NOON + timedelta(seconds=step)}
        for metric, step in itertools.product((EVIL, "eval/accuracy"), range(30))
    ])  # fmt: skip
    run_rollups(lake)
    return lake


@pytest.fixture
def ranklake(lake, capsys, monkeypatch):
    """Give a function that calls a command on the lake and returns its status, output and error."""
    monkeypatch.setenv("RANKLAKE_LAKE", lake.uri)

    def call(*words):
        status = run(list(words))
        return (status, *capsys.readouterr())

    return call


@pytest.mark.parametrize(
    ("axis", "column", "last"), [("step", "step", 29), ("tokens", "tokens_seen", 6000), ("time", "elapsed_s", 29)]
)
def test_a_curve_is_what_its_sql_gives(lake, ranklake, axis, column, last):
    """JSON has the points and the SQL that gives them, over steps, tokens and time."""
    for metric, value in (("loss", "loss"), ("eval/accuracy", "mean")):
        _, out, _ = ranklake("plot", "alpha-1", metric, "--x", axis, "--json")
        (one,) = json.loads(out)["plots"]
        rows = query(lake, one["answered"]["sql"]).to_pylist()
        assert one["column"] == value
        assert one["points"] == [[row[column], pytest.approx(row[value])] for row in rows]
        assert one["points"][-1][0] == last


@pytest.mark.slow
def test_a_hundred_thousand_steps_are_as_small(tmp_path):
    """A curve has as many points as are drawn, and its tokens and time are those of the steps."""
    lake = Lake.create(str(tmp_path / "lake"))
    append(lake, "steps", many_steps("long", 100_000))
    run_rollups(lake, ["run_summary"])
    (one,) = plot_metrics(asking(lake), ["long"], ["loss"], {}, "tokens")
    assert len(one.points) == PARTS
    assert one.points[0][0] == 10
    assert one.points[-1][0] == pytest.approx(10 * (100_000 - 100_000 // PARTS), rel=1e-3)


def test_steps_near_the_greatest_number_have_curves(lake):
    """Parts of steps are computed without overflow: the page's curves and the plot have every step."""
    ask = asking(lake)
    (one,) = plot_metrics(ask, ["far"], ["loss"], {})
    assert [x for x, _ in one.points] == [0.0, float(2**62 - 2), float(2**62 - 1)] or len(one.points) == 2
    found = curves(ask, "far", 3)
    for answered in (found.steps, found.losses, found.heat):
        assert all(0 <= row["part"] < PARTS for row in answered.rows)
        assert {row["step"] for row in answered.rows} >= {0, 2**62 - 2}


def test_neighbours_are_averaged_and_gaps_stay():
    """A smoothed value is the mean of what is finite near it; what was a gap is one afterwards."""
    assert smooth_values([1.0, 3.0, 5.0], 1) == [2.0, 3.0, 4.0]
    found = smooth_values([1.0, NAN, 5.0, 7.0], 2)
    assert math.isnan(found[1])
    assert [found[0], *found[2:]] == [3.0, pytest.approx(13 / 3), 6.0]


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("is_log", [False, True])
def test_lines_fit_the_terminal(lake, width, is_log):
    """No line is longer than the terminal is wide; runs have letters, gaps and what no logarithm has are told."""
    found = plot_metrics(asking(lake), ["gaps", "beta", "far"], ["loss", "step_time_s"], {})
    lines = plot_lines(found, "step", width, is_log=is_log)
    assert max(map(len, lines)) <= width
    told = "\n".join(lines)
    assert "a gaps" in told
    if width > 40:
        assert "2 points are not finite" in told
        assert ("2 points are not above zero" in told) == is_log


def test_without_a_terminal_there_is_a_plot(ranklake):
    """What is piped has eighty columns and no escape sequence; a run of one step has a point."""
    status, out, _ = ranklake("plot", "beta", "loss")
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    assert any("\u2801" <= one <= "\u28ff" for one in out)
    assert "\x1b" not in out


def test_names_are_text(ranklake):
    """Markup and characters that turn the writing stand as escapes."""
    status, out, _ = ranklake("plot", "alpha-1", EVIL)
    assert status == 0
    assert "\u202e" not in out
    assert "\x1b" not in out


@pytest.mark.slow
@pytest.mark.leaky("the chart library keeps its engine")
def test_pictures_are_written_whole(ranklake, tmp_path):
    """The file's ending says which; names are text; what cannot be written is a line, and nothing is left beside it."""
    for name, begins in (("a.png", b"\x89PNG"), ("a.SVG", b"<svg")):
        words = ["alpha-1", "loss", EVIL, "--with", "gaps", "--log", "--output", str(tmp_path / name)]
        assert ranklake("plot", *words)[:2] == (0, f"wrote {tmp_path / name}\n")
        assert (tmp_path / name).read_bytes().startswith(begins)
    drawn = (tmp_path / "a.SVG").read_text(encoding="utf-8")
    assert "<b>" not in drawn
    assert "\u202e" not in drawn
    (tmp_path / "full.png").mkdir()
    assert ranklake("plot", "alpha-1", "loss", "--output", str(tmp_path / "nowhere" / "a.png"))[0] == 2
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.SVG", "a.png", "full.png"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["alpha-1", "los"], "alpha-1 has no values by step of 'los'; did you mean 'loss'?"),
        (["alpha-1", "eval/acuracy"], "did you mean 'eval/accuracy'?"),
        (["alpha-1", "loss", "--with", "nobody"], "no run 'nobody'"),
        (["gaps", "loss", "--x", "tokens"], "loss of gaps has no tokens to be drawn over; draw it over --x step"),
        (["alpha-1", "mfu"], "alpha-1 has no values by step of 'mfu'"),
        (["idle", "loss"], "'loss'; no step was recorded, or none is rolled up yet: run 'ranklake rollup'"),
        (["alpha-1", "loss", "--output", "a.pdf"], "a.pdf: a picture is PNG or SVG; end the name in .png or .svg"),
    ],
)
def test_what_cannot_be_drawn_says_why(ranklake, words, told):
    """A line says what is not there, and what is."""
    status, out, error = ranklake("plot", *words)
    assert (status, out) == (2, "")
    assert told in error


@pytest.mark.slow
def test_a_role_that_does_not_see_the_steps_is_told(ranklake, tmp_path, monkeypatch):
    """The reason is the role's, not that the run has no loss."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "roles.yaml").write_text(ROLES)
    (tmp_path / "ranklake.toml").write_text('[sql]\nroles = "roles.yaml"\n')
    status, _, error = ranklake("plot", "alpha-1", "loss", "--role", "narrow")
    assert status == 2
    assert "role narrow does not see it (unknown table 'step_rollup')" in error
