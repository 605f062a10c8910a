"""The page of the production trace names its cause at first glance, with the numbers of the published analysis."""

import json

import pytest
from importing import imported
from page_read import Read

from ranklake.insight.runs.report import runs_state
from ranklake.lake.rollups.runner import run_rollups
from ranklake.views.html.run_pages import section
from ranklake.views.html.shell import render


@pytest.mark.slow
def test_the_last_stage_is_named_as_the_cause(lake, spool, published):
    """Before all charts: slower by S, through the last stage; its bar is the longest, with the published value."""
    folder = published("stragglers") / "stragglers"
    imported(lake, spool, "table", folder / "trace-ST.parquet", mapping="straggler-trace", run="production")
    run_rollups(lake)
    (page,) = (page for page in section(runs_state(lake)).pages if page.title == "production")
    text = render(page).decode()
    given = json.loads((folder / "result-ST.json").read_text())
    slower = f"{100 * (given['blocking_slowdown'] - 1):.1f} %"
    cause = f"Steps take {slower} longer than ideal, through the last stage (stage 3 of 0 to 3)"
    assert text.index(cause) < text.index('<div class="heat"') < text.index('<div class="charts')
    assert "Stage 3 holds " in text
    bars = next(spec for spec in Read(text).specs if spec.get("mark", {}).get("type") == "bar")["data"]["values"]
    first, *others = bars
    assert first["part"] == "stage 3"
    assert abs(first["excess"] - (given["blocking_decompose_by_stage"]["3"] - 1)) < 1e-5
    assert all(bar["excess"] < first["excess"] for bar in others)
