"""A machine whose clock was set forward takes nothing before its time."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import libfaketime
import pytest
from retaining import APPROVER, CONTRACTS, POLICIES, agree, bring_days, plan

from ranklake.lake.store import files as store_files
from ranklake.lake.store.files import FastClockError
from ranklake.retention.plans.apply import apply
from ranklake.retention.proposals.retention_plans import register


def far(site, *words):
    """Run a command on a machine that is 400 days ahead of what the lake lies on; return its exit code and words."""
    library = next(Path(libfaketime.__file__).parent.rglob("libfaketime.so.1"))
    faked = {"LD_PRELOAD": str(library), "FAKETIME": "+400d", "FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1"}
    command = [sys.executable, "-m", "ranklake", "retain", *words, "--lake", site.lake.uri]
    done = subprocess.run(command, env=os.environ | faked, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_clock_set_forward_takes_no_rows(site):
    """Planned, approved and applied there: refused in a line, and no row went; nor on a machine that is right."""
    bring_days(site, [0, 5, 40])
    assert far(site, "plan", "--by", "Petra")[0] == 0
    (name,) = register(site.lake.tables)
    assert far(site, "approve", name, "--by", APPROVER, "--reason", "due")[0] == 0
    code, said = far(site, "apply", name, "--by", "Otto")
    assert code != 0
    assert "this machine's clock says" in said
    assert "set the clock: rows would go before their time" in said
    assert len(site.rows("steps")) == 30


@pytest.mark.parametrize(("ahead", "refused"), [(timedelta(hours=23), False), (timedelta(hours=25), True)])
def test_a_day_is_tolerated(site, monkeypatch, ahead, refused):
    """The store's time is that of a file which it wrote just now; one that tells none refuses nothing."""
    bring_days(site, [0, 100])
    made = plan(site)
    agree(site, made.name)
    with monkeypatch.context() as then:
        then.setattr(store_files, "modified_time", lambda _: datetime.now(UTC) - ahead)
        if refused:
            with pytest.raises(FastClockError, match="before their time"):
                apply(site.lake, made.name, "Otto", CONTRACTS, POLICIES)
        monkeypatch.setattr(store_files, "modified_time", lambda _: None if refused else datetime.now(UTC) - ahead)
        apply(site.lake, made.name, "Otto", CONTRACTS, POLICIES)
    assert len(site.rows("steps")) == 10
