"""What tests of retention do again and again."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from segments import DAY, step_rows
from today import TODAY

from ranklake.lake.audit import clock
from ranklake.lake.contracts.load import load_contracts
from ranklake.retention.plans.apply import apply, approve
from ranklake.retention.plans.plan import make_plan
from ranklake.retention.plans.purge import purge_due
from ranklake.retention.policies.policies import load_policies

CONTRACTS = load_contracts()
CLASSES = {one.retention for one in CONTRACTS.values()}
POLICIES = load_policies(CONTRACTS)
APPROVER = "Ada Approver"


def with_period(class_, days, policies=POLICIES):
    """Return policies with another period for a class."""
    rules = (replace(one, delete_after_days=days) if one.name == class_ else one for one in policies.rules)
    return replace(policies, rules=tuple(rules))


def days_ago(days):
    """Return the midnight that many days before today."""
    return datetime(TODAY.year, TODAY.month, TODAY.day, tzinfo=UTC) - timedelta(days=days)


def bring_days(site, ages, rows=10):
    """Ingest rows of ``steps``, so many per age in days; one segment each."""
    for segment, age in enumerate(ages):
        site.bring(step_rows(rows, segment=segment, start=days_ago(age)), rows_before=rows * segment)


def written_on(site, table):
    """Return the last date that ingest gave rows of a table, which it dates by its clock."""
    return max(row["date"] for row in site.rows(table))


def plan(site, as_of=TODAY, policies=POLICIES):
    """Plan what is due."""
    return make_plan(site.lake, CONTRACTS, policies, as_of)


def set_forward(monkeypatch, days, *, up_too=True):
    """Set the clock, and a machine's uptime with it, forward by days; or the clock alone."""
    now, up = clock.now, clock.uptime
    monkeypatch.setattr(clock, "now", lambda: now() + timedelta(days=days))
    if up_too:
        boot, seconds = up() or ("none", 0.0)
        monkeypatch.setattr(clock, "uptime", lambda: (boot, seconds + days * 86_400))


def keeping(policies=POLICIES, days=7):
    """Return policies under which applied plans can be cancelled for some days."""
    return replace(policies, grace_days=days)


def purge_after(site, days=8):
    """Purge what is kept, some days later, and set the clock back; return what was purged."""
    with pytest.MonkeyPatch.context() as patched:
        set_forward(patched, days)
        return purge_due(site.lake, "Carla Canceller").plans


def agree(site, name):
    """Approve a plan."""
    return approve(site.lake, name, APPROVER, "as agreed")


def carry_out(site, name, today=TODAY, policies=POLICIES):
    """Apply a plan."""
    return apply(site.lake, name, "Otto Operator", CONTRACTS, policies, today)


__all__ = [
    "APPROVER",
    "CLASSES",
    "CONTRACTS",
    "DAY",
    "POLICIES",
    "TODAY",
    "agree",
    "bring_days",
    "carry_out",
    "days_ago",
    "keeping",
    "plan",
    "purge_after",
    "set_forward",
    "with_period",
    "written_on",
]
