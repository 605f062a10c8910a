"""Commits that are truly gone at the end of a log, and whose number the next writer takes."""

import pytest
from governed import Site
from segments import step_rows

from ranklake.cli import run


@pytest.mark.parametrize(
    ("table", "said"),
    [
        pytest.param("steps", "steps: the table holds 20 rows, the plans say 30", id="rows"),
        pytest.param("segments", "steps: the table holds 40 rows, the plans say 30", id="what was taken in"),
        pytest.param("ingest_plans", "", id="the ledger's"),
    ],
)
def test_a_commit_that_is_gone_and_overwritten_shows(tmp_path, capfd, table, said):
    """Status tells by counting; only the ledger's own is made again, by the plan that it was of."""
    site = Site(tmp_path)
    for segment in range(2):
        site.bring(step_rows(10, segment=segment), rows_before=10 * segment)
    max((site.folder / "lake/tables" / table / "_delta_log").glob("*.json")).unlink()
    site.bring(step_rows(10, segment=2), rows_before=20)
    assert run(["status", "--lake", site.lake.uri]) == (1 if said else 0)
    assert capfd.readouterr().err.strip() == said
