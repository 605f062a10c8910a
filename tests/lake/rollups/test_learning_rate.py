"""The learning rate: every schedule that people use is sound, and what no schedule does is named."""

import numpy as np
import pytest

from ranklake.detection.declaration import Series, of_detector, thresholds_of
from ranklake.lake.rollups.detectors.rates import DETECTORS
from ranklake.lake.rollups.findings import _detections

COUNT = 2_000
PEAK = 3e-4
AT = np.arange(COUNT) / COUNT
WARM = np.minimum(1, (np.arange(COUNT) + 1) / 100)
COSINE = PEAK * (1 + np.cos(np.pi * AT)) / 2
SOUND = {
    "constant": np.full(COUNT, PEAK),
    "warm-up from zero": PEAK * np.minimum(1, np.arange(COUNT) / 100),
    "cosine to zero": WARM * COSINE,
    "cosine to a tenth, then constant": np.maximum(WARM * COSINE, PEAK / 10),
    "cosine to zero, ten steps of it": np.r_[(WARM * COSINE)[:-10], np.zeros(10)],
    "linear": WARM * PEAK * (1 - AT),
    "inverse square root": PEAK * np.minimum(np.arange(1, COUNT + 1) / 100, (np.arange(1, COUNT + 1) / 100) ** -0.5),
    "steps": PEAK * 0.1 ** np.repeat([0, 1, 2, 3], COUNT // 4),
    "warm-up, stable, decay": PEAK * np.minimum(WARM, np.minimum(1, (1 - AT) * 5)),
    "warm restarts": PEAK * (1 + np.cos(np.pi * (AT * 4 % 1))) / 2,
    "warm restarts of shrinking peaks": PEAK * 0.5 ** np.floor(AT * 4) * (1 + np.cos(np.pi * (AT * 4 % 1))) / 2,
    "triangles": PEAK * (0.01 + np.abs((AT * 6 % 2) - 1)),
    "triangles from below": PEAK * (0.01 + 1 - np.abs((AT * 6 % 2) - 1)),
    "one cycle": PEAK * np.interp(AT, [0, 0.3, 1], [0.04, 1, 1e-4]),
    "on plateaus": PEAK * np.repeat([1, 0.5, 0.25, 0.125, 0.0625], COUNT // 5),
    "exponential": PEAK * 0.999 ** np.arange(COUNT),
    "logged each tenth step": np.where(np.arange(COUNT) % 10, np.nan, WARM * COSINE),
    "none": np.full(COUNT, np.nan),
}


def detections_of(rates, attempt=0, step=None):
    """Return what the detector says of rates."""
    count = len(rates)
    columns = {
        "ts": np.arange(count) * 1_000_000, "lr": np.asarray(rates, float),
        "step": np.arange(count) if step is None else np.asarray(step),
        "attempt": np.broadcast_to(np.asarray(attempt), count),
    }  # fmt: skip
    return _detections(DETECTORS[0], Series({"run": "r"}, columns), LIMITS)


LIMITS = of_detector("learning_rate", thresholds_of(DETECTORS))


@pytest.mark.parametrize("name", list(SOUND))
def test_a_schedule_gives_nothing(name):
    """Also of a run that was resumed: with the steps repeated since the checkpoint, or right behind it."""
    rates = SOUND[name]
    assert detections_of(rates) == []
    numbers = np.arange(COUNT)
    for back in (0, 1, 70):
        cut = COUNT // 3
        steps = np.r_[numbers[:cut], numbers[cut - back :]]
        attempt = np.r_[np.zeros(cut, int), np.ones(COUNT - cut + back, int)]
        assert detections_of(rates[steps], attempt, steps) == [], back


def test_a_rate_of_zero():
    """From the start, since the scheduler never steps; and in the middle."""
    (detection,) = detections_of(np.zeros(COUNT))
    assert detection.message == "The learning rate is 0 from step 0 on, for 2,000 steps: nothing is learned"
    assert detection.end is None
    middle = SOUND["constant"].copy()
    middle[700:800] = 0
    (detection,) = detections_of(middle)
    assert (detection.step, detection.end_step, detection.baseline) == (700, 799, PEAK)
    ended = np.r_[SOUND["cosine to zero"], np.zeros(300)]
    (detection,) = detections_of(ended)
    assert detection.message.startswith("The learning rate is 0 from step 2000 on, for 300 steps")


def test_a_cosine_that_goes_on_behind_its_last_step():
    """It rises again: named from its lowest step on."""
    at = np.arange(1_500) / 1_000
    (detection,) = detections_of(PEAK * (1 + np.cos(np.pi * at)) / 2)
    assert detection.step == 1_000
    assert detection.message.startswith("The learning rate rises again from step 1000 on, where its decay was over")


@pytest.mark.parametrize("name", ["constant", "cosine to zero", "linear", "inverse square root"])
@pytest.mark.parametrize(("length", "ratio"), [(1, 10), (4, 0), (3, 0.1)])
def test_another_rate_for_a_few_steps(name, length, ratio):
    """As when two schedulers write it."""
    rates = SOUND[name].copy()
    rates[900 : 900 + length] *= ratio
    (detection,) = detections_of(rates)
    assert (detection.step, detection.end_step) == (900, 899 + length)


def test_a_rate_that_starts_over_after_a_restart():
    """The scheduler's state was not restored: the warm-up begins again."""
    rates = np.r_[SOUND["cosine to zero"][:1_000], SOUND["cosine to zero"][:500]]
    attempt = np.repeat([0, 1], [1_000, 500])
    detections = detections_of(rates, attempt, np.arange(1_500))
    assert [detection.step for detection in detections] == [1_000]
    assert "after a restart" in detections[0].message
