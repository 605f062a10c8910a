"""Values that come late from a device: into the row that was written, else a metric, else counted."""

import pytest
from recorded import rows

from ranklake.capture.common.gaps import BAD_VALUE, DEVICE_VALUE


class Broken:
    """An event, or its value, of a device that is in trouble."""

    def __init__(self, raises_in):
        self._raises_in = raises_in

    def query(self):
        """Say whether it has happened."""
        if self._raises_in == "query":
            raise RuntimeError("CUDA error: device-side assert triggered")
        return True

    def item(self):
        """Return the value."""
        raise RuntimeError("CUDA error: device-side assert triggered")


@pytest.mark.parametrize("raises_in", ["query", "item"])
def test_a_device_in_trouble_at_the_close_costs_its_values_alone(place, raises_in):
    """Each value under way is counted, and the run's end is recorded, though the device answers with errors."""
    run = place.start()
    for _ in range(3):
        assert run.slots.device.expect(Broken(raises_in), Broken(raises_in), lambda _: None, "scalars")
    run.close()
    assert run.gaps() == {"scalars": {DEVICE_VALUE: 3}}
    assert {row["event"] for row in rows(place.spool, "events")} >= {"run_end", "rank_end"}


def test_counts_that_arrive_late_are_whole_numbers_in_the_row(place):
    """Tokens and samples from a device are in their step's row as numbers, not as the bits of a float."""
    with place.start() as run:
        with run.step(0) as step:
            pass
        step.put_late("tokens", 512.0)
        step.put_late("samples", 8.0)
    (row,) = rows(place.spool, "steps")
    assert (row["tokens"], row["samples"]) == (512, 8)
    assert rows(place.spool, "scalars") == []
    assert run.gaps() == {}


def test_a_late_count_that_is_no_whole_number_is_counted(place):
    """NaN tokens are a bad value whenever they come."""
    with place.start() as run:
        with run.step(0) as step:
            step.put_late("tokens", float("nan"))
        step.put_late("tokens", 0.5)
    assert rows(place.spool, "steps")[0]["tokens"] is None
    assert run.gaps() == {"scalars": {BAD_VALUE: 2}}


def test_a_late_value_does_not_replace_another(place):
    """What the row has stays there; the late one is a metric of that step, as when both are logged in it."""
    with place.start() as run:
        with run.step(3, tokens=4) as step:
            run.log(loss=1.0)
        step.put_late("loss", 2.0)
        step.put_late("tokens", 5.0)
    (row,) = rows(place.spool, "steps")
    assert (row["loss"], row["tokens"]) == (1.0, 4)
    late = {(row["metric"], row["step"], row["value"]) for row in rows(place.spool, "scalars")}
    assert late == {("train/loss", 3, 2.0), ("train/tokens", 3, 5.0)}
