"""The page of objectives: numbers equal to their SQL, the budget by date, and what used it up."""

from pathlib import Path

import altair as alt
import pytest
from evaluated_slos import END, evaluated
from page_read import Read, compared

from ranklake.cli import run as command
from ranklake.lake.store.lake import Lake
from ranklake.views.html import site as publishing
from ranklake.views.html.alerts_pages import slo_section as section
from ranklake.views.html.shell import render


def test_numbers_are_those_of_their_sql(lake):
    """Worst first, with the budget of each date, and the days that used it up; names are text."""
    state = evaluated(lake)
    assert (state.at, state.latest.rows[0]["slo"], state.latest.rows[0]["alert"]) == (END, "saves", "page")
    left = {row["date"].day: row["budget_left_ratio"] for row in state.history.rows}
    assert left == pytest.approx({18: 0.0, 19: -2.0, 20: -8.0})
    (losses,) = state.losses
    assert [(row["day"].day, row["bad_count"]) for row in losses.days.rows] == [(20, 9), (19, 5), (18, 1)]
    result = section(state)
    assert result.headline == "3 objectives: 1 burn too fast, 1 missed"
    (page,) = result.pages
    text = render(page).decode()
    assert compared(lake, text) > 30
    assert "<b>west" not in text
    (spec,) = Read(text).specs
    alt.Chart.from_dict(spec)


def test_a_lake_without_evaluations_and_files_with_faults(tmp_path, monkeypatch):
    """The page stands, and says what is missing or wrong."""
    monkeypatch.setattr(publishing, "library", lambda: b"")
    monkeypatch.chdir(tmp_path)
    lake = Lake.create(str(tmp_path / "lake"))
    page = Path(tmp_path) / "out/slo/index.html"
    assert command(["report", "slo", "--out", str(tmp_path / "out"), "--lake", lake.uri]) == 0
    assert "no objective was evaluated yet" in page.read_text()
    (tmp_path / "slo").mkdir()
    (tmp_path / "slo/x.yaml").write_text("kind: SLO")
    (tmp_path / "ranklake.toml").write_text('[slo]\nfiles = "slo"\n')
    assert command(["report", "slo", "--out", str(tmp_path / "out"), "--lake", lake.uri]) in {0, 1}
    assert "The files of objectives cannot be used" in page.read_text()
