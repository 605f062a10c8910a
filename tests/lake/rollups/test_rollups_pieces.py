"""Large dates are computed piece by piece: ranges that cover everything once, and the same rows as in one go."""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from threading import Barrier, BrokenBarrierError

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollup_inputs import DAY, NOON, context, rows

from ranklake.lake.rollups.declaration import SqlBody
from ranklake.lake.rollups.evaluate import WHOLE_RANGE, evaluate_day, ranges
from ranklake.lake.rollups.registry import ROLLUPS

CUT = [rollup for rollup in ROLLUPS if rollup.cut]


def log(*described):
    """Return files as the Delta log tells of them: (first step, last step, ranks, rows)."""
    first, last, ranks, rows = (pa.array(column, pa.int64()) for column in zip(*described, strict=True))
    least = pa.array([0] * len(described), pa.int64())
    greatest = pc.subtract(ranks, 1)
    return pa.table({"min.step": first, "max.step": last, "min.rank": least, "max.rank": greatest, "num_records": rows})


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 64), st.integers(1, 10_000)), min_size=1
    ),
    st.integers(1, 50_000),
)
def test_ranges_cover_every_integer_once(described, cost):
    """They begin at the least integer, end at the greatest, and each begins where the one before it ended."""
    files = log(*[(first, first + width, ranks, count) for first, width, ranks, count in described])
    found = ranges(files, "step", cost)
    assert (found[0][0], found[-1][1]) == WHOLE_RANGE
    assert all(low <= high for low, high in found)
    assert all(one[1] + 1 == other[0] for one, other in pairwise(found))


def test_cuts_lie_where_files_begin_and_else_evenly():
    """Hourly files are not cut through; one file of a whole date is; what is small or unknown stays whole."""
    hours = log(*[(hour * 3600, hour * 3600 + 3599, 64, 64 * 3600) for hour in range(24)])
    found = ranges(hours, "step", 500_000)
    assert len(found) > 8
    assert all(low % 3600 == 0 for low, _ in found[1:])
    one = ranges(log((0, 86_399, 64, 64 * 86_400)), "step", 500_000)
    widths = np.diff([low for low, _ in one[1:]])
    assert len(one) > 8
    assert widths.max() - widths.min() <= 1
    assert ranges(log((0, 10, 1, 10)), "step") == [WHOLE_RANGE]
    assert ranges(hours.drop_columns(["max.step"]), "step", 1) == [WHOLE_RANGE]


@pytest.mark.parametrize(("hours", "pieces"), [(1, 1), (2, 1), (5, 2), (24, 2), (40, 4)])
def test_pieces_go_side_by_side_where_it_is_worth_it(hours, pieces):
    """A date of more than a little is cut for each core, and a large one so that none has nothing to do at last."""
    files = log(*[(hour * 3600, hour * 3600 + 3599, 64, 128 * 3600) for hour in range(hours)])
    assert len(ranges(files, "step", at_once=2)) == pieces


@pytest.mark.parametrize("rollup", CUT, ids=lambda rollup: rollup.name)
def test_a_rollup_that_is_cut_is_one_query(rollup):
    """Pieces share a session, so what one of them registers would be another's."""
    assert isinstance(rollup.transform, SqlBody)
    assert [query.kind for query in rollup.transform.queries] == ["result"]


@pytest.mark.parametrize("rollup", CUT, ids=lambda rollup: rollup.name)
def test_pieces_give_the_rows_of_the_whole(rollup):
    """Any cuts: the same rows, digit for digit."""
    rng = np.random.default_rng(7)
    facts = [
        {"rank": rank, "step": step, "ts": NOON, "step_time_s": float(np.float32(rng.gamma(20, 0.05)))}
        for step in range(40)
        for rank in range(4)
    ]
    ctx = context(steps=rows("steps", facts))
    whole = evaluate_day(ctx, rollup, DAY).sort_by(rollup.cut)
    cuts = [(WHOLE_RANGE[0], 3), (4, 4), (5, 30), (31, WHOLE_RANGE[1])]
    for at_once in (1, 3):
        assert evaluate_day(ctx, rollup, DAY, cuts, at_once).sort_by(rollup.cut).equals(whole)
    assert whole.num_rows == 40


@pytest.mark.parametrize("rollup", [rollup for rollup in CUT if rollup.lookups], ids=lambda rollup: rollup.name)
def test_pieces_at_once_register_a_lookup_once(rollup):
    """A session takes no second table of a name, so two pieces that both find none may fail."""
    both, made = Barrier(2), []

    def made_at_once(make):
        made.append(make)
        with suppress(BrokenBarrierError):
            both.wait(1)  # another piece that makes it, too
        return make()

    slow = replace(rollup, lookups={name: partial(made_at_once, make) for name, make in rollup.lookups.items()})
    facts = [{"rank": 0, "step": step, "ts": NOON, "step_time_s": 1.0} for step in range(10)]
    cuts = [(WHOLE_RANGE[0], 4), (5, WHOLE_RANGE[1])]
    ctx = context(steps=rows("steps", facts))
    assert evaluate_day(ctx, slow, DAY, cuts, 2).num_rows == 10
    assert made == list(rollup.lookups.values())
