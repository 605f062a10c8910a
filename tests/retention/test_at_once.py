"""Two who do the same at once, by the commands themselves: it is done once, and each is told how it stands."""

import subprocess
import sys

import pytest
from retaining import agree, bring_days, carry_out, plan

from ranklake.lake.audit.proof import prove
from ranklake.lake.audit.trail import trail
from ranklake.retention.plans.removals import removal_faults
from ranklake.retention.proposals import lifecycle
from ranklake.retention.proposals.proposals import recorded_actions
from ranklake.retention.proposals.retention_plans import RETENTION_PLANS


def begin(site, *words):
    """Start a command on a site's lake."""
    command = [sys.executable, "-m", "ranklake", "retain", *words, "--lake", site.lake.uri]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_whoever_looks_while_another_applies_looks_again(site, monkeypatch):
    """What is gone by then is no reason to call the plan void: it was applied."""
    bring_days(site, [0, 100])
    made = plan(site)
    agree(site, made.name)
    genuine, fresh = lifecycle.audit.record, []

    def record(*words, **more):
        monkeypatch.setattr(lifecycle.audit, "record", genuine)
        fresh.append(carry_out(site, made.name)[1])
        return genuine(*words, **more)

    monkeypatch.setattr(lifecycle.audit, "record", record)
    fresh.append(carry_out(site, made.name)[0].applied is not None)
    assert fresh == [True, True]
    assert len(site.rows("steps")) == 10


@pytest.mark.slow
@pytest.mark.parametrize("times", range(2))
def test_two_apply_at_once(site, times):
    """The rows go once, the audit log has one application, and whoever came second is told that it was done."""
    bring_days(site, [0, 100, 200])
    made = plan(site)
    agree(site, made.name)
    crew = [begin(site, "apply", made.name, "--by", "Otto") for _ in range(3)]
    told = [one.communicate(timeout=120) for one in crew]
    assert [one.returncode for one in crew] == [0, 0, 0], told
    assert len(site.rows("steps")) == 10
    steps = recorded_actions(site.lake.tables, RETENTION_PLANS)[made.name]
    assert {name: len(some) for name, some in steps.items()}[RETENTION_PLANS.applied] == 1
    site.balances()
    assert removal_faults(site.lake) == []
    assert prove(site.lake).whole


@pytest.mark.slow
def test_a_hold_beside_an_application_is_never_half(site):
    """Either all rows stay, and the application says that the plan is void, or it had begun, and all went."""
    bring_days(site, [0, 100, 200])
    made = plan(site)
    agree(site, made.name)
    words = ("--where", "table=steps", "--reason", "a case", "--until", "2099-01-01", "--by", "Lee")
    crew = [begin(site, "apply", made.name, "--by", "Otto"), begin(site, "hold", *words)]
    told = [one.communicate(timeout=120) for one in crew]
    assert crew[1].returncode == 0, told
    rows = {row["action"]: row["seq"] for row in trail(site.lake.tables)}
    went = crew[0].returncode == 0
    assert len(site.rows("steps")) == (10 if went else 30), told
    assert went or "is not due under the policies of today" in told[0][1]
    if went:
        assert rows[RETENTION_PLANS.begin] < rows["retention.hold"]
    site.balances()
    assert removal_faults(site.lake) == []
