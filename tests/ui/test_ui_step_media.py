"""Media by step and histograms: what was shown by a step, side by side; nothing of it for who must not see it."""

import numpy as np
import pytest
from histogram_rows import histogram_row
from recorded_runs import SCRIPT, lake_of_runs, media_of
from rollup_inputs import append
from starlette.datastructures import QueryParams
from ui_client import asking

from ranklake.lake.query.roles import Role
from ranklake.ui.step_media import StepMediaView
from ranklake.ui.view import UnfitViewError

pytestmark = pytest.mark.leaky("a client keeps its event loop")


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake of runs with media and histograms."""
    made = lake_of_runs(tmp_path_factory.mktemp("shown"))
    append(made, "media", [*media_of("alpha-1"), *media_of("alpha-2")])
    append(made, "distributions", [
        histogram_row(np.linspace(-1, 1, 50), step, run="alpha-1", step=step, metric="grads/all") for step in range(5)
    ])  # fmt: skip
    return made


def test_a_step_shows_the_latest_of_each_name_until_then(lake):
    """Of two runs side by side; a name that came later is not there."""
    with asking(lake) as client:
        last = client.get("/explore/media.html?run=alpha-1&run=alpha-2").text
        early = client.get("/explore/media.html?run=alpha-1&step=7").text
        named = client.get("/explore/media.html?run=alpha-1&metric=plot").text
    assert last.count("<img src=") == 4
    assert last.count("at 3") == 2
    assert 'max="9" value="9"' in last
    assert "at 3" not in early
    assert "at 1" in early
    assert ("<img src=" in named, "samples" in named.partition('id="media"')[2]) == (True, False)
    assert "grads/all of alpha-1" in last
    assert 'id="quantiles-0"' in last
    assert SCRIPT not in last


def test_what_a_role_does_not_see_is_not_shown(lake):
    """Personal media, and histograms where their table is not for the role; a run that it does not see is not there."""
    seen = Role("reader", frozenset({"operational"}), frozenset({"media", "run_summary"}), runs="run LIKE 'alpha-1'")
    with asking(lake, seen) as client:
        text = client.get("/explore/media.html?run=alpha-1").text
        other = client.get("/explore/media.html?run=alpha-2").text
    assert text.count("<img src=") == 1
    assert "lovelace@example.org" not in text
    assert "grads/all" not in text
    assert "<img src=" not in other
    assert "at 3" not in other


@pytest.mark.parametrize(
    "query", ["run=a&run=b&run=c&run=d&run=e", "run=a&step=-1", "run=a&step=x", "run=a&step=9999999999999999999999"]
)
def test_an_address_that_says_no_view_is_refused(lake, query):
    """Too many runs, no step: one line, 400."""
    with asking(lake) as client:
        assert client.get(f"/explore/media.html?{query}").status_code == 400
    with pytest.raises(UnfitViewError):
        StepMediaView.of(QueryParams("&".join(f"run={n}" for n in range(5))))
