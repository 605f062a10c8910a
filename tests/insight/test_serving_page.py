"""The serving page: requests and drift of served models, numbers equal to their SQL."""

from datetime import timedelta
from pathlib import Path

import altair as alt
import pytest
from page_read import Read, compared
from rollup_inputs import NOON, append

from ranklake.cli import run as command
from ranklake.insight.overview.pipeline import serving_state
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.views.html import site as publishing
from ranklake.views.html.pipeline_pages import serving_section as section
from ranklake.views.html.shell import render


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake with eight days of requests, of which those of the last are answered otherwise."""
    lake = Lake.create(str(tmp_path_factory.mktemp("serving") / "lake"))
    append(lake, "inferences", [
        {"ts": NOON + timedelta(days=day, seconds=number), "model": "<b>ranker", "weight": 10.0,
         "status": "error" if number % 10 == 0 else "ok", "latency_s": 0.1 + 0.001 * (number % 9),
         "prediction_bucket": "dog" if day == 0 or number % 2 else "cat"}
        for day in range(-7, 1) for number in range(400)
    ])  # fmt: skip
    run_rollups(lake, ["inference_hourly", "drift"], workers=InProcess())
    return lake


def test_numbers_are_those_of_their_sql_and_what_drifted_is_first(lake):
    """Figures, models, hours and drift; the model's name is text."""
    state = serving_state(lake)
    first, *_ = state.drift.rows
    assert (first["status"], first["distribution"][:27]) == ("drifted", "model=<b>ranker prediction ")
    assert state.totals.first_row["requests"] == 7 * 4000
    assert state.totals.first_row["failed_ratio"] == pytest.approx(0.1)
    result = section(state)
    assert result.headline == "Last 7 days: 1 model, 28,000 requests, 10.0 % failed, 2 statistics drifted"
    (page,) = result.pages
    text = render(page).decode()
    assert compared(lake, text) > 30
    assert "<b>ranker" not in text
    for spec in Read(text).specs:
        alt.Chart.from_dict(spec)


def test_a_lake_without_served_models_says_so(tmp_path, monkeypatch):
    """The page stands, and tells what it lacks."""
    monkeypatch.setattr(publishing, "library", lambda: b"")
    lake = Lake.create(str(tmp_path / "lake"))
    assert command(["report", "serving", "--out", str(tmp_path / "out"), "--lake", lake.uri]) == 0
    assert "no request to a served model was recorded yet" in (Path(tmp_path) / "out/serving/index.html").read_text()
