"""Artifacts and assets that flows leave at a Prefect server, and the pages that they are made of."""

import json
import re

import pytest

from ranklake.flows.lineage import Lineage
from ranklake.flows.pages import MOST_ROWS, cell_text, findings, page, table
from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.driver import SPOOL, Unit
from ranklake.lake.rollups.registry import ROLLUPS
from ranklake.redaction.place_keys import place_key

INGESTED = {
    **dict.fromkeys(("rows_stored", "rows_rejected", "rows_duplicate", "segments", "unreadable", "purged"), 0),
    "plans": [],
    "elapsed_s": 0.0,
    "waiting": {},
    "refused": {},
    "damaged": [],
    "held": {"odd name": 2},
    "held_first": {"odd name": "a|b<img src=x>\n[c](javascript:d)"},
}


@pytest.mark.slow
def test_artifacts_tell_what_a_stage_did(scenario):
    """Rows by fate, checks by severity, what rollups wrote: each under a key that stays the same for a lake."""
    (ingest,) = scenario.pages("ranklake-ingest-lake-")
    assert "| stored | 101 |" in ingest
    (check,) = scenario.pages("ranklake-check-fact-lake-")
    assert "| error | failed | 1 |" in check
    (found,) = scenario.pages("ranklake-findings-fact-lake-")
    (row,) = json.loads(found)
    assert (row["table"], row["date"], row["check"]) == ("steps", "2026-03-01", "steps_unique")
    (rollup,) = scenario.pages("ranklake-rollup-lake-")
    assert f"12 of {len(ROLLUPS)} rollups changed" in rollup
    assert r"| step\_rollup | 1 | 1 | 50 | 1 |" in rollup


@pytest.mark.slow
def test_the_pipeline_writes_the_report_and_links_to_it(scenario):
    """Where a place is configured the last stage writes the pages; its artifact and that of the check lead there."""
    (told,) = scenario.pages("ranklake-report-lake-")
    home = (scenario.folder / "site/index.html").read_text()
    assert "1 check failing" in home
    assert "1 check failing" in told
    assert "[Open the report](https://pages/ml/index.html)" in told
    (check,) = scenario.pages("ranklake-check-fact-lake-")
    assert "(https://pages/ml/quality/index.html)" in check
    last = max(scenario.told["flow_runs"], key=lambda one: one["start_time"] if "report" in one["name"] else "")
    assert re.fullmatch(r"report \S+ (\d+) of \1 pages written", last["name"])


@pytest.mark.slow
def test_retention_is_planned_by_a_flow_and_approved_in_the_lake(scenario):
    """The plan's artifact asks for approval by the exact command; its application fails without one."""
    before, after = scenario.pages("ranklake-retention-plan-lake-")
    name = before.split("`")[1]
    assert f"ranklake retain approve {name} --by NAME" in before
    assert f"ranklake retain apply {name}" in before
    assert "| steps | 2026-03-01 | raw | 90 |" in before
    assert after.startswith("Nothing is past its retention period")
    states = sorted(
        (one["state_type"], one["name"].split(" ", 2)[2:])
        for one in scenario.told["flow_runs"]
        if one["name"].startswith("retention_apply")
    )
    assert states == [("COMPLETED", ["101 rows removed"]), ("FAILED", [])]
    (applied,) = scenario.pages("ranklake-retention-apply-lake-")
    assert applied.startswith(f"Plan `{name}` applied: 101 rows")


@pytest.mark.slow
def test_tables_that_a_run_wrote_are_assets_with_what_they_come_from(scenario):
    """Facts come from the spool, rollups from their inputs; what was not written is not materialized."""
    made = {}
    for one in scenario.told["events"]:
        if one["event"] == "prefect.asset.materialization.succeeded":
            roles = [(each["prefect.resource.role"], each["prefect.resource.id"]) for each in one["related"]]
            made[one["resource"]["prefect.resource.id"]] = {name for role, name in roles if role == "asset"}
            assert one["resource"]["prefect.asset.description"]
    lineage = Lineage(f"{scenario.folder}/lake", f"{scenario.folder}/spool", {})
    assert made[lineage.key("segments")] == {lineage.key(SPOOL)}
    reads = {one.name: {lineage.key(table) for table in one.tables} for one in ROLLUPS}
    assert made[lineage.key("step_mfu")] == reads["step_mfu"] == {lineage.key("step_rollup"), lineage.key("mfu")}
    assert made[lineage.key("goodput")] == reads["goodput"]
    assert lineage.key("gpu_hourly") not in made, "it had no input"


def test_text_of_others_is_no_markup():
    """Pipes, tags, links and lines in a name are text; no row or picture comes of them."""
    text = page("ingest", INGESTED)
    row = next(line for line in text.splitlines() if line.startswith("| odd name"))
    assert row == r"| odd name | 2 | a\|b\<img src=x\>\\n\[c\](javascript:d) |"
    assert cell_text("see https://host/x") == r"see https:\//host/x"
    assert cell_text("s3://AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI@b/c") == r"s3:\//\[redacted\]@b/c"


def test_the_page_of_the_catalog_announces_changes():
    """What got another name, what was deprecated: an artifact says it with what takes its place."""
    change = {
        "at": "2026-11-24T14:11:00+00:00",
        "kind": "metric",
        "name": "own/wait_ms",
        "what": "deprecated; use own/wait",
    }
    text = page("catalog", {"tables": 3, "columns": 9, "metrics": 2, "changes": [change]})
    assert "| metric | own/wait\\_ms | 2026-11-24T14:11 | deprecated; use own/wait |" in text
    assert "| tables | 3 |" in text
    assert "changed lately" not in page("catalog", {"tables": 3, "columns": 9, "metrics": 2, "changes": []})


def test_long_tables_end_with_how_many_are_left_out_and_names_may_be_links():
    """A page stays one that a browser shows; a table's name leads to the task that judged it."""
    lines = table(("name", "n"), [(f"t{row}", row) for row in range(MOST_ROWS + 5)], {"t1": "http://ui/runs/1"})
    assert "| [t1](http://ui/runs/1) | 1 |" in lines
    assert lines.endswith("and 5 more")
    assert page("new", {}) == ""
    assert findings({"unsound": [], "standing": []}) == []


@pytest.mark.parametrize(
    ("uri", "key"),
    [
        ("s3://user:secret@bucket/a/lake/?X-Amz-Signature=0123456789abcdef", "s3://bucket/a/lake"),
        ("/data/my lake", "file:///data/my_lake~18f894e7"),
        ("s3://bucket/ghp_16C7e42F292c6912E7710c838347Ae178B4a/lake", "ranklake://"),
    ],
)
def test_keys_of_assets_hold_no_credential(uri, key):
    """A key is a URI that Prefect takes, the same each time, of the place alone."""
    assert place_key(uri).startswith(key)
    assert place_key(uri) == place_key(uri)
    asset = Lineage(uri, "", {"steps": contract("steps")}).written(Unit("commit", "steps", writes=True))
    assert asset.key.endswith("/tables/steps")
    assert asset.properties.owners == ["training-platform"]
    assert "secret" not in asset.key
    assert "ghp_" not in asset.key
