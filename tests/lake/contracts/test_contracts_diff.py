"""What a change of a contract takes, and what the lints say about one."""

from dataclasses import replace

import pytest
from contract_lint import LINTS, lint, lint_metrics
from hypothesis import given, settings
from hypothesis import strategies as st

from ranklake.lake.contracts import Check, Column, Tombstone, contract, load_contracts, load_metrics, metric
from ranklake.lake.contracts.freeze import Change, diff
from ranklake.lake.contracts.model import Suppression

STEPS = contract("steps")
TABLES = sorted(load_contracts())


def with_column(which, /, **changes):
    """Return steps with one column changed."""
    columns = tuple(replace(column, **changes) if column.name == which else column for column in STEPS.columns)
    return replace(STEPS, columns=columns)


def without(name, *, tombstone):
    """Return steps without a column."""
    gone = STEPS.column(name)
    retired = (Tombstone(gone.id, gone.name, gone.type, 2, "Unused."),) if tombstone else ()
    return replace(STEPS, columns=tuple(one for one in STEPS.columns if one is not gone), retired=retired)


def adding(column):
    """Return steps with a column more."""
    return replace(STEPS, columns=(*STEPS.columns, column))


NEW = Column(99, "reward", "float32", "operational", "Reward.", unit="1")

JUDGED = {
    "added": (adding(NEW), [("safe", "reward", "added")]),
    "added and required": (
        adding(replace(NEW, required=True)),
        [("breaking", "reward", "added and required: stored rows lack it")],
    ),
    "retired": (without("lr", tombstone=True), [("rewrite", "lr", "retired")]),
    "dropped": (without("lr", tombstone=False), [("breaking", "lr", "removed without a tombstone under `retired:`")]),
    "renamed": (with_column("lr", name="rate"), [("rewrite", "rate", "renamed from 'lr'")]),
    "widened": (with_column("lr", type="float64"), [("rewrite", "lr", "type float32 became float64")]),
    "narrowed": (with_column("step", type="int32"), [("breaking", "step", "type int64 became int32")]),
    "unit": (
        with_column("data_time_s", unit="ns"),
        [("breaking", "data_time_s", "unit s became ns: stored numbers would mean something else")],
    ),
    "class made stricter": (
        with_column("non_finite", class_="personal"),
        [("rewrite", "non_finite", "class operational became personal")],
    ),
    "made required": (with_column("loss", required=True), [("breaking", "loss", "became required")]),
    "made nullable": (with_column("step", required=False), [("rewrite", "step", "is no longer required")]),
    "format": (with_column("non_finite", format="json"), [("breaking", "non_finite", "format None became json")]),
    "doc": (with_column("loss", doc="Another."), [("safe", "loss", "doc changed")]),
    "checks": (with_column("loss", checks=(Check("loss_there", "not_null"),)), [("safe", "loss", "checks changed")]),
    "grain": (
        replace(STEPS, grain=("run", "step")),
        [("breaking", "grain", "run, attempt, rank, step became run, step")],
    ),
    "retention": (replace(STEPS, retention="logs"), [("safe", "retention", "'raw' became 'logs'")]),
    "order": (replace(STEPS, columns=STEPS.columns[::-1]), [("safe", "columns", "stand in another order")]),
}  # fmt: skip


@pytest.mark.parametrize("case", JUDGED)
def test_changes_are_judged(case):
    """Each kind of change has its verdict, by column id, and nothing else is reported with it."""
    new, expected = JUDGED[case]
    assert diff(STEPS, new) == tuple(Change(*one) for one in expected)


def test_a_retired_id_is_never_used_again():
    """Taking the id of a retired column is breaking: stored files may still hold its values."""
    old = without("lr", tombstone=True)
    again = replace(old, retired=(), columns=(*old.columns, replace(NEW, id=STEPS.column("lr").id)))
    assert [change.verdict for change in diff(old, again)] == ["breaking"]


@pytest.mark.parametrize("name", TABLES)
def test_a_contract_does_not_differ_from_itself(name):
    """No change, no difference."""
    assert diff(contract(name), contract(name)) == ()


@settings(deadline=None)
@given(st.data())
def test_differences_go_both_ways(data):
    """Whatever subset of columns is gone one way is added the other way, and a rename is never a drop and an add."""
    one = contract(data.draw(st.sampled_from(TABLES)))
    nullable = [column for column in one.columns if not column.required]
    gone = data.draw(st.sets(st.sampled_from(nullable))) if nullable else set()
    renamed = data.draw(st.sets(st.sampled_from(one.columns))) - gone
    kept = tuple(
        replace(column, name=f"{column.name}_renamed") if column in renamed else column
        for column in one.columns
        if column not in gone
    )
    other = replace(one, columns=kept)
    forth, back = diff(one, other), diff(other, one)
    assert {change.item for change in forth if change.detail.startswith("removed")} == {column.name for column in gone}
    assert {change.item for change in back if change.detail == "added"} == {column.name for column in gone}
    assert sum(change.detail.startswith("renamed from") for change in forth) == len(renamed) == len(forth) - len(gone)


@pytest.mark.parametrize("name", TABLES)
def test_packaged_contracts_lint_clean(name):
    """Nothing fires that is not silenced with a reason, and nothing is silenced in vain."""
    assert lint(contract(name)) == ()


def test_packaged_metrics_lint_clean():
    """Units are SI, homes and successors exist, units agree with the columns that metrics are stored in."""
    assert lint_metrics(load_metrics(), load_contracts()) == ()


FIRES = {
    "RL001": (with_column("data_time_s", unit="ns"), "data_time_s"),
    "RL002": (with_column("loss", unit="J"), "loss"),
    "RL003": (with_column("loss", unit=None), "loss"),
    "RL004": (with_column("loss", unit="furlong"), "loss"),
    "RL005": (with_column("grad_norm", doc="Grad norm."), "grad_norm"),
    "RL006": (with_column("non_finite", class_="personal"), "non_finite"),
    "RL007": (with_column("date", class_="personal", mask="hash"), "date"),
    "RL008": (replace(STEPS, partition=("run",)), "table"),
    "RL009": (replace(STEPS, checks=()), "table"),
    "RL010": (with_column("loss", id=10_000), "loss"),
    "RL011": (with_column("loss", since=2), "loss"),
    "RL012": (with_column("loss", checks=(Check("never", "between", columns=("loss",), min=1, max=0),)), "never"),
    "RL013": (with_column("loss", checks=(Check("odd", "length", columns=("loss",), min=1),)), "odd"),
}  # fmt: skip


def test_every_lint_has_a_case():
    """No lint is untried."""
    assert set(FIRES) == set(LINTS)


@pytest.mark.parametrize("code", FIRES)
def test_lints_fire_and_are_silenced_for_one_item(code):
    """Each lint fires on what it is for, on that item alone, and its suppression quiets it and nothing more."""
    broken, item = FIRES[code]
    assert [(one.code, one.item) for one in lint(broken)] == [(code, item)]
    assert lint(replace(broken, lint=(Suppression(code, item, "Because."),))) == ()
    elsewhere = lint(replace(broken, lint=(Suppression(code, "step", "Because."),)))
    assert [(one.code, one.item) for one in elsewhere] == [("RL000", "step"), (code, item)]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"unit": "furlong"}, "not SI"),
        ({"stored_in": "steps.los"}, "stored_in names no column"),
        ({"stored_in": "steps.tokens"}, "not that of steps.tokens"),
        ({"replaced_by": "train/nothing"}, "replaced_by names no metric"),
        ({"min": 2.0, "max": 1.0}, "min is above max"),
        ({"kind": "ratio"}, "ratio with another unit"),
    ],
)
def test_metric_lints_fire(changes, what):
    """Each thing that can be wrong with a metric is said."""
    broken = {"train/loss": replace(metric("train/loss"), **changes)}
    assert any(what in finding.message for finding in lint_metrics(broken, load_contracts()))
