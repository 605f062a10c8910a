"""The detector ``rank_silence``: which ranks say nothing, by the sums of those that recorded each step."""

import itertools
import json
from datetime import timedelta

import pytest
from rollup_inputs import DAY, NOON, computed, context

RANKS = 8
SECOND = timedelta(seconds=1)


def findings_of(silent, back=10**6, at=100):
    """Return the findings of 200 steps of 8 ranks, some of which say nothing from a step on, until they are back."""
    steps = [
        {"run": "r1", "attempt": 0, "rank": rank, "step": n, "ts": NOON + n * SECOND, "step_time_s": 0.5}
        for n, rank in itertools.product(range(200), range(RANKS))
        if not (at <= n < back and rank in silent)
    ]  # fmt: skip
    ctx = context(steps=steps)
    rollup = computed(ctx, "step_rollup", days=(DAY,))
    rows = computed(context(step_rollup=rollup), "run_findings").to_pylist()
    return [row for row in rows if row["detector"] == "rank_silence"]


@pytest.mark.parametrize("silent", [{0}, {5}])
def test_one_rank_is_named_in_message_and_column(silent):
    """From its first step without it; a rank that comes back has an end."""
    (rank,) = silent
    (row,) = findings_of(silent)
    assert (row["rank"], row["step"], row["end_ts"], json.loads(row["evidence"])["ranks"]) == (rank, 100, None, [rank])
    assert row["message"].startswith(f"Rank {rank} of 8 says nothing from step 100 on, for 100 steps (run r1, ")
    (row,) = findings_of(silent, back=150)
    assert (row["rank"], row["end_step"], row["end_ts"]) == (rank, 149, NOON + 149 * SECOND)


@pytest.mark.parametrize("silent", [{0, 1}, {2, 7}, {0, 7}])
def test_any_two_ranks_are_named(silent):
    """Next to each other or apart."""
    (row,) = findings_of(silent)
    assert (row["rank"], set(json.loads(row["evidence"])["ranks"])) == (None, silent)
    assert row["message"].startswith(f"Ranks {min(silent)}, {max(silent)} of 8 say nothing from step 100 on")


def test_a_node_is_named_and_others_are_counted():
    """Ranks in a row, as of a node, are known by both sums; three that are not are as many, without names."""
    (row,) = findings_of({4, 5, 6, 7})
    assert row["message"].startswith("Ranks 4 to 7 of 8 say nothing from step 100 on")
    for silent in ({1, 2, 4}, {0, 2, 7}):
        (row,) = findings_of(silent)
        assert json.loads(row["evidence"])["ranks"] == []
        assert row["message"].startswith("3 of 8 ranks say nothing from step 100 on")
