"""Histograms over steps: shares and quantiles are those of the values, within the width of a bucket."""

import numpy as np
import pytest
from histogram_rows import histogram_row
from hypothesis import given
from hypothesis import strategies as st
from rollup_inputs import append

from ranklake.insight.runs.asking import QueriedFacts, asking
from ranklake.insight.runs.histograms import RANGES, histogram_map, histogram_metrics
from ranklake.lake.store.lake import Lake


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake of a run whose gradients move over 300 steps, on two ranks; step 7 was made twice."""
    made = Lake.create(str(tmp_path_factory.mktemp("histograms") / "lake"))
    rng = np.random.default_rng(5)
    drawn = {(step, rank): rng.normal(step / 100, 1, 400) for step in range(300) for rank in range(2)}
    rows = [
        histogram_row(values, slot, step=step, rank=rank, attempt=0)
        for slot, ((step, rank), values) in enumerate(drawn.items())
    ]
    rows.append(histogram_row(np.full(9, 50.0), 900, step=7, attempt=1))
    rows.append(histogram_row([1.0], 901, metric="of no step"))
    append(made, "distributions", rows)
    return made, drawn


def test_shares_and_quantiles_are_those_of_the_values(lake):
    """Of each of a hundred steps, of both ranks; each column of the map adds up to one."""
    made, drawn = lake
    result = histogram_map(asking(made), "r", "grads")
    assert len(result.steps) == 100
    assert [step.step for step in result.steps] == sorted(step.step for step in result.steps)
    assert (result.steps[0].step, result.steps[-1].step) == (2, 299)
    limits = np.array(result.limits)
    shares = np.array(result.shares())
    assert shares.shape == (RANGES, 100)
    np.testing.assert_allclose(shares.sum(axis=0), 1)
    for place, step in enumerate(result.steps):
        values = np.concatenate([drawn[step.step, 0], drawn[step.step, 1]])
        assert step.count == 800
        assert step.mean == pytest.approx(values.mean())
        for ratio in (0.05, 0.5, 0.95):
            assert step.quantile(ratio) == pytest.approx(
                np.quantile(values, ratio), rel=0.1, abs=0.1
            )  # a bucket's width
        counted = np.histogram(np.clip(values, limits[0], limits[-1]), limits)[0] / 800
        np.testing.assert_allclose(shares[:, place], counted, atol=0.04)


def test_a_step_made_twice_counts_as_made_last(tmp_path):
    """Values of the attempt that failed are not mixed with those of the next."""
    made = Lake.create(str(tmp_path / "lake"))
    attempts = [histogram_row([1.0] * 5, 0, step=7), histogram_row([50.0] * 9, 1, step=7, attempt=1)]
    append(made, "distributions", attempts)
    (step,) = histogram_map(asking(made), "r", "grads").steps
    assert (step.count, step.quantile(0.5)) == (9, pytest.approx(50.0))


def test_only_metrics_with_steps_are_named(lake):
    """By patterns; what has no step has no place on the axis."""
    made, _ = lake
    assert histogram_metrics(asking(made), "r", ["*"], 9) == ["grads"]
    assert histogram_metrics(asking(made), "r", ["loss*"], 9) == []
    assert histogram_map(asking(made), "r", "nothing").limits == ()


NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=64)


@given(st.lists(st.lists(NUMBERS, max_size=20), min_size=1, max_size=3))
def test_any_values_give_shares_that_add_up(every):
    """Zeros, one value, the greatest and least floats, NaN: all finite values are in a range, all numbers finite."""
    answer = tuple({"attempt": 0, **histogram_row(values, step=step)} for step, values in enumerate(every))

    def ask(sql):
        return QueriedFacts(sql, answer)

    result = histogram_map(ask, "r", "grads")
    finite = [[value for value in values if np.isfinite(value)] for values in every]
    assert [step.count for step in result.steps] == [len(values) for values in finite if values]
    shares = np.array(result.shares()) if result.steps else np.zeros((RANGES, 0))
    np.testing.assert_allclose(shares.sum(axis=0), 1)
    assert np.isfinite(shares).all()
    for step, values in zip(result.steps, [values for values in finite if values], strict=True):
        for ratio in (0.0, 0.5, 1.0):
            assert min(values) <= step.quantile(ratio) <= max(values)
