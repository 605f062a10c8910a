"""Compare: runs of a view side by side in the browser, as their viewer sees them."""

import re

import pytest
from hidden_run import READER, TABLES, lake_with_a_hidden_run
from rollup_inputs import NOON, append
from ui_client import asking

from ranklake.lake.query.roles import Role

pytestmark = pytest.mark.leaky("a client keeps its event loop")


def test_runs_are_side_by_side_with_their_summary_values(tmp_path):
    """The baseline first; summary values, settings and packages differ; a role sees nothing of a hidden run."""
    lake = lake_with_a_hidden_run(tmp_path)
    value = {"ts": NOON, "kind": "summary", "incarnation": 1}
    append(lake, "annotations", [
        {**value, "run": "alpha-1", "key": "eval/<b>acc", "number": 0.75},
        {**value, "run": "alpha-2", "key": "eval/<b>acc", "number": 0.5},
        {**value, "run": "beta", "key": "canary/score", "number": 0.875},
    ])  # fmt: skip
    append(lake, "runs", [
        {"run": run, "incarnation": 10, "ts": NOON, "attempt": 1, "packages": f'{{"torch": "{version}"}}'}
        for run, version in (("alpha-1", "2.7.0"), ("alpha-2", "2.8.0"))
    ])  # fmt: skip
    asked = {"run": ["alpha-1", "alpha-2", "beta"], "baseline": "alpha-2"}
    with asking(lake) as client:
        text = client.get("/explore/compare.html", params=asked).text
        assert 'href="compare.html?' in client.get("/explore/").text
        assert client.get("/explore/compare.html?run=alpha-1").status_code == 400
        assert client.get("/explore/compare.html?" + "&".join(f"run={n}" for n in range(13))).status_code == 400
        assert 'href="compare.html?' not in client.get("/explore/?run=alpha-1").text
    assert re.search(r'<h2 id="summary">.*?<th scope="col">alpha-2</th><th scope="col">alpha-1</th>', text, re.DOTALL)
    row = (
        r'<th scope="row">eval/&lt;b&gt;acc</th><td>0.5</td><td>0.75</td><td><span class="unknown">not set</span></td>'
    )
    assert re.search(row, text)
    assert "package torch" in text
    assert '<a href="../runs/run-alpha-1-' in text
    role = Role("reader", frozenset(READER["classes"]), frozenset(TABLES), runs=READER["runs"])
    with asking(lake, role) as client:
        seen = client.get("/explore/compare.html", params=asked).text
    assert "eval/&lt;b&gt;acc" in seen
    assert "canary" not in seen
    assert "0.875" not in seen
    assert "run-beta" not in seen
