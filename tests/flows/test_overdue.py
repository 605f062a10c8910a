"""Overdue stages are listed in an artifact: the stage, its input, since when, and the remedy."""

import os
import time

from segments import put_segment, step_rows

from ranklake.config import Config
from ranklake.context import Context
from ranklake.flows.artifacts import overdue_page
from ranklake.lake.store.lake import Lake


def test_what_waits_for_too_long_is_named_with_its_age(tmp_path):
    """A segment that has waited for two hours is overdue; one that came now is not."""
    Lake.create(str(tmp_path / "lake"))
    context = Context.of(Config(), {"lake.uri": str(tmp_path / "lake"), "spool.uri": str(tmp_path / "spool")})
    path = put_segment(tmp_path / "spool", step_rows(3))
    assert overdue_page(context) == "Nothing is overdue."
    before = time.time() - 7200
    os.utime(path, (before, before))
    page = overdue_page(context)
    assert "| ingest | overdue: 1 segment in the spool, since 7,20" in page
    assert "ranklake pipeline" in page


def test_what_cannot_be_found_out_is_said(tmp_path):
    """Where there is no lake, each stage says that it is not known, and why."""
    context = Context.of(Config(), {"lake.uri": str(tmp_path / "lake"), "spool.uri": str(tmp_path / "spool")})
    assert overdue_page(context).count("not known") >= 4
