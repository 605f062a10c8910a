"""The benchmark of the site works, on its lake pages show what their SQL gives, and a check rewrites few of them."""

import sys
from pathlib import Path

import pytest
from page_read import compared

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from report_bench import made, measure

from ranklake.quality.report.gather import gather
from ranklake.views.html.quality_pages import section
from ranklake.views.html.shell import render

pytestmark = [pytest.mark.bench, pytest.mark.leaky("V8 keeps the files that it unpacks itself from")]


def test_a_site_is_built_and_refreshed(tmp_path):
    """Tables of an operator's are among them; after a check of one partition its page and those of all are written."""
    found = measure(tmp_path, 36, 3)
    assert (found.tables, found.pages) == (36, 39)
    assert found.results > 3_000
    assert found.rewritten == 4
    assert found.largest_bytes < 1_000_000


def test_numbers_of_a_site_are_what_their_sql_gives(tmp_path):
    """On each page, also of failing checks and of such as could not be computed."""
    lake, _ = made(tmp_path, 6, 12)
    counts = [compared(lake, render(page).decode()) for page in section(gather(lake)).pages]
    assert len(counts) == 8
    assert sum(counts) > 3_000
