"""The rollup ``run_findings``: faults planted in rows of a run, and what the detectors say of them."""

import json
from datetime import timedelta

import pytest
from rollup_inputs import DAY, NOON, computed, context

SECOND = timedelta(seconds=1)


def steps(count=300, *, run="r1", attempt=0, first=0, start=NOON, seconds=1.0, **columns):
    """Return rows of step_rollup; a column is a value, a sequence, or a function of the step's place."""
    rows = []
    for n in range(count):
        given = {
            name: value(n) if callable(value) else value[n] if isinstance(value, list | tuple) else value
            for name, value in columns.items()
        }
        ts = start + n * seconds * SECOND
        rows.append({
            "run": run, "attempt": attempt, "step": first + n, "ts": ts, "lead_ts": ts, "ranks": 2, "loss_ranks": 2,
            "sum_step_time_ns": 0, "sum_self_time_ns": 0, "lead_step_time_ns": 0, "non_finite_ranks": 0, **given,
        })  # fmt: skip
    return rows


def findings(runs=None, **tables):
    """Return the findings of runs, in order of time."""
    rows = computed(context(**tables), "run_findings", runs=runs).to_pylist()
    return sorted(rows, key=lambda row: (row["start_ts"], row["detector"]))


def test_a_loss_that_is_not_a_number_is_an_error():
    """From which step on, in how many; the query of its evidence shows the steps."""
    rows = steps(loss_flag=lambda n: "nan" if 100 <= n < 105 else None, non_finite_ranks=lambda n: 2 * (100 <= n < 105))
    (row,) = findings(step_rollup=rows)
    assert (row["detector"], row["severity"], row["run"], row["attempt"]) == ("non_finite", "error", "r1", 0)
    assert (row["step"], row["end_step"], row["effect"]) == (100, 104, 5)
    assert (row["start_ts"], row["end_ts"]) == (NOON + 100 * SECOND, NOON + 104 * SECOND)
    assert row["message"].startswith("The loss is nan from step 100 on, in 5 steps (run r1, attempt 0")
    assert json.loads(row["evidence"])["steps"] == 5
    shown = context(step_rollup=rows).sql(row["evidence_sql"]).to_arrow_table().to_pylist()
    assert [one["step"] for one in shown if one["loss_flag"]] == [100, 101, 102, 103, 104]


def test_a_run_that_ends_in_nan_lasts_and_is_critical():
    """Nothing says that it is over."""
    (row,) = findings(step_rollup=steps(loss_flag=lambda n: "nan" if n >= 290 else None))
    assert (row["severity"], row["end_ts"]) == ("critical", None)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_short_series_say_nothing(count):
    """Nor does a run without steps."""
    assert findings(step_rollup=steps(count, mean_loss=2.0)) == []


def test_the_injected_fault_stands_with_its_finding():
    """Of its attempt."""
    attempts = [{"run": "r1", "attempt": 0, "ts": NOON, "end_ts": NOON, "date": DAY, "injected": "nan"}]
    (row,) = findings(step_rollup=steps(10, loss_flag=lambda n: "nan" if n == 5 else None), attempt_facts=attempts)
    assert row["injected"] == "nan"
