"""The page of runs side by side: numbers are what their SQL gives, and chance is told from a difference."""

import statistics
from datetime import timedelta

import pytest
from page_read import Read, compared
from recorded_runs import EVIL
from rollup_inputs import NOON, append
from scipy.stats import ttest_ind

from ranklake.cli import run
from ranklake.insight.runs.asking import QueriedFacts, asking
from ranklake.insight.runs.compare import compare
from ranklake.insight.runs.curves import plot_metrics
from ranklake.insight.runs.repeats import Verdict, holm_correction, repeat_groups
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.views.html import site as publishing
from ranklake.views.html.compare_pages import section
from ranklake.views.html.shell import render

LOSSES = {"base": [2.0, 2.1, 1.9, 2.05], "wide": [1.5, 1.55, 1.45, 1.52], "same": [2.02, 2.08, 1.94, 2.0]}
NAMES = tuple(f"{kind}-{seed}" for kind, losses in LOSSES.items() for seed in range(len(losses)))


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake of three kinds of run, four seeds each: one better than the first, one as good; and a lone run."""
    lake = Lake.create(str(tmp_path_factory.mktemp("compare") / "lake"))
    told = [(f"{kind}-{seed}", kind, seed, loss) for kind, losses in LOSSES.items() for seed, loss in enumerate(losses)]
    for number, (name, kind, seed, loss) in enumerate([*told, ("lone", EVIL, 0, 9.0)]):
        config = f'{{"kind": "{kind if name != "lone" else "lone"}", "data": {{"seed": {seed}}}}}'
        append(lake, "runs", [
            {"run": name, "incarnation": 10 + number, "ts": NOON, "world_size": 1, "config": config, "job": kind}
        ])  # fmt: skip
        append(lake, "steps", [
            {"run": name, "incarnation": 10 + number, "step": step, "loss": loss + 2 - step, "tokens": 100,
             "step_time_s": 1.0, "ts": NOON + timedelta(seconds=step)}
            for step in range(3)
        ])  # fmt: skip
    run_rollups(lake)
    return lake


def test_chance_is_told_from_a_difference(lake):
    """Runs that differ in seeds alone are repeats; a p-value is Welch's over their values, after Holm's correction."""
    ask = asking(lake)
    found = repeat_groups(ask, compare(ask, (*NAMES, "lone")))
    assert [group.runs for group in found.groups] == [
        *(tuple(name for name in NAMES if name.startswith(kind)) for kind in LOSSES), ("lone",),
    ]  # fmt: skip
    of_loss = {one.group: one for one in found.verdicts if one.measure == "last_loss"}
    raw = {
        group: ttest_ind(LOSSES["base"], LOSSES[kind], equal_var=False).pvalue
        for group, kind in ((1, "wide"), (2, "same"))
    }
    assert of_loss[1].p_value == pytest.approx(2 * raw[1], rel=1e-3)
    assert of_loss[2].p_value == pytest.approx(raw[2], rel=1e-3)
    assert [of_loss[group].is_significant for group in (1, 2, 3)] == [True, False, False]
    assert of_loss[1].difference == pytest.approx(
        statistics.fmean(LOSSES["wide"]) - statistics.fmean(LOSSES["base"]), rel=1e-5
    )
    assert of_loss[3].reason == "fewer than two repeats"
    assert {one.reason for one in found.verdicts if one.measure == "mean_step_time_s"} >= {"no group varies"}


def test_the_least_p_value_counts_most():
    """Holm's correction: multiplied by how many are left, never less than the one before, unknown ones left out."""
    given = [Verdict("a", 1, 0.0, 0.01), Verdict("b", 1, 0.0, None, "why"), Verdict("c", 1, 0.0, 0.03),
             Verdict("d", 1, 0.0, 0.02)]  # fmt: skip
    values = [one.p_value for one in holm_correction(given)]
    assert values.pop(1) is None
    assert values == pytest.approx([0.03, 0.04, 0.04])


@pytest.mark.slow
def test_every_number_is_what_its_sql_gives(lake):
    """Figures, cells and curves, run as the SQL stands there; what names say is text."""
    ask = asking(lake)
    names = (*NAMES[:6], "lone")
    found = compare(ask, names)
    drawn = [plot_metrics(ask, names, [metric], {}) for metric in ("loss", "tokens_per_s")]
    (page,) = section(found, drawn, repeat_groups(ask, found)).pages
    text = render(page).decode()
    assert compared(lake, text) > 30
    read = Read(text)
    for source, spec in zip(read.specs_of, read.specs, strict=True):
        rows = {row["step"]: row for row in query(lake, read.sql[source]).to_pylist()}
        mine = [value for value in spec["data"]["values"] if value["run"] == names[0]]
        assert [value["step"] for value in mine] == list(rows)
        column = "loss" if source == "curve-loss" else "tokens_per_s"
        assert [value["value"] for value in mine] == pytest.approx([row[column] for row in rows.values()], rel=1e-5)
        assert [value["tokens_seen"] for value in mine] == [row["tokens_seen"] for row in rows.values()]
    assert "last loss differ significantly" in text
    assert "data.seed" in text
    assert "<b>" not in text
    assert "\u202e" not in text


def test_runs_without_steps_or_settings_have_a_page(lake):
    """Two runs of which nothing else is known are no repeats of one another, and the page says what is missing."""
    ask = asking(lake)
    found = compare(ask, ("ghost", "spirit"))
    chance = repeat_groups(ask, found)
    assert len(chance.groups) == 2
    (page,) = section(found, [], chance).pages
    assert "No curves" in render(page).decode()


def test_what_a_role_does_not_see_is_unknown(lake):
    """Nothing is invented for runs whose rows a role does not see."""
    blind = lambda sql: QueriedFacts(sql, (), "role narrow does not see it")  # noqa: E731
    found = compare(blind, NAMES[:2])
    (page,) = section(found, [], repeat_groups(blind, found)).pages
    text = render(page).decode()
    assert "role narrow does not see it" in text
    assert "significantly" not in text


@pytest.mark.slow
def test_the_command_writes_the_page_and_replaces_it(lake, tmp_path, monkeypatch, capsys):
    """It says in a line what the page says; the site keeps one comparison; a target that is no site is refused."""
    monkeypatch.setattr(publishing, "library", lambda: b"")
    out = tmp_path / "out"
    for names in (NAMES[:8], NAMES[:2]):
        assert run(["compare", *names, "--page", "--out", str(out), "--lake", lake.uri]) == 0
        told = capsys.readouterr().out
        assert told.endswith(f": {out}/compare/index.html\n")
    assert told.startswith("2 runs, 1 setting differs")
    assert [one.name for one in (out / "compare").iterdir()] == ["index.html"]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    assert run(["compare", *NAMES[:2], "--page", "--out", str(tmp_path / "full"), "--lake", lake.uri]) == 2
