"""Proposals of any kind: approved by another than who proposed, applied by another than who approved, in time, once.

Retention plans, the first kind, have tests of their own (``tests/retention``); the kind here is a second one.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from desk import Desk
from governed import Site

from ranklake.lake.audit.proof import verify
from ranklake.lake.audit.trail import trail
from ranklake.lake.plans.plan import last_finished
from ranklake.retention.proposals.proposals import (
    ExpiredProposalError,
    SameOperatorError,
    UnknownProposalError,
    VoidProposalError,
)


@pytest.fixture
def desk(tmp_path):
    """Give an empty lake with proposals."""
    return Desk(Site(tmp_path))


def test_a_proposal_becomes_one_plan(desk):
    """Proposed, approved and applied by three people: one plan, three audit rows; nothing the second time."""
    name = desk.propose("a", "b", proposer="Pia", expires=datetime.now(UTC) + timedelta(days=1))
    found, fresh = desk.approve(name, "Ada", reason="mended")
    assert (found.state, fresh) == ("approved", True)
    assert desk.approve(name, "Ada")[1] is False
    done, fresh = desk.apply(name, "Otto")
    assert (done.state, done.plan, fresh) == ("applied", last_finished(desk.site.lake.tables), True)
    assert desk.apply(name, "Otto")[1] is False
    assert desk.actions() == [("release.approve", "Ada"), ("release.apply", "Otto"), ("release.applied", "Otto")]
    assert verify(desk.site.lake) is None
    assert [row["details"] for row in trail(desk.site.lake.tables)][2] == f'{{"plan": {done.plan}, "released": 2}}'


def test_who_proposed_may_not_approve(desk):
    """However the name is spelt; unless there is one person alone."""
    name = desk.propose("a", proposer="Pia Proposer")
    with pytest.raises(SameOperatorError, match="whoever proposed this plan may not approve it"):
        desk.approve(name, " pia  proposer")
    assert desk.actions() == []
    assert desk.approve(name, "Pia Proposer", single_operator=True)[1] is True
    with pytest.raises(SameOperatorError, match="whoever approved this plan may not apply it"):
        desk.apply(name, "Pia Proposer")


def test_what_expired_is_neither_approved_nor_applied(desk):
    """A proposal is good for its time; an approval does not make it last longer."""
    name = desk.propose("a", expires=datetime.now(UTC))
    with pytest.raises(ExpiredProposalError, match="plan again with 'ranklake quality plan'"):
        desk.approve(name, "Ada")
    desk.rows[name] = replace(desk.rows[name], expires=None)
    desk.approve(name, "Ada")
    desk.rows[name] = replace(desk.rows[name], expires=datetime.now(UTC))
    with pytest.raises(ExpiredProposalError):
        desk.apply(name, "Otto")
    assert desk.actions() == [("release.approve", "Ada")]
    assert last_finished(desk.site.lake.tables) == 0


def test_what_does_not_fit_the_lake_any_more_is_not_begun(desk):
    """A check that fails leaves no row that says it was begun, and no plan; the error names what of it does not fit."""
    name = desk.propose("a")
    desk.approve(name, "Ada")
    desk.void = True
    with pytest.raises(VoidProposalError, match=f"{name}: a: is released already; plan again"):
        desk.apply(name, "Otto")
    assert desk.actions() == [("release.approve", "Ada")]
    assert last_finished(desk.site.lake.tables) == 0


def test_a_name_that_is_none_is_told(desk):
    """With the nearest name, or how to make one."""
    with pytest.raises(UnknownProposalError, match="unknown release 'x'; make one with 'ranklake quality plan'"):
        desk.approve("x", "Ada")
    name = desk.propose("a")
    with pytest.raises(UnknownProposalError, match=f"did you mean '{name}'"):
        desk.apply(name[:-1], "Otto")
