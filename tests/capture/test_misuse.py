"""Misuse: what is recorded otherwise than its caller may have meant is told, once by name, and counted."""

import pytest
from recorded import rows

from ranklake.capture.common.gaps import closest_name
from ranklake.capture.common.layouts import PHASES
from ranklake.lake.contracts.load import load_contracts, load_metrics
from ranklake.lake.contracts.model import is_unit


def told(caplog):
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("misuse", "said"),
    [
        (lambda run: run.phase("foward").__enter__().__class__, ("'foward'", "did you mean 'forward'?")),
        (lambda run: run.log(los=1.0), ("'los'", "did you mean 'loss'?")),
        (lambda run: run.log({"eval/los": 1.0}), ("'eval/los'", "did you mean 'eval/loss'?")),
        (lambda run: run.scalar("mine", unit="bananas").add(1.0), ("'bananas'", "UCUM")),
        (lambda run: run.event("mine", severity="catastrophe"), ("'catastrophe'", "'error'")),
        (lambda run: run.event("mine", severity="loud"), ("'loud'", "'info'")),
        (lambda run: run.step(-5).__enter__(), ("-5", "refused")),
    ],
    ids=["phase", "column", "metric", "unit", "severity", "no severity", "step"],
)
def test_each_misuse_is_told_once_and_counted(place, caplog, misuse, said):
    """The line names what was given and, where there is something near, what may have been meant."""
    run = place.start()
    misuse(run)
    misuse(run)
    run.close()
    (line,) = told(caplog)
    for part in said:
        assert part in line
    counted = [row["value"] for row in rows(place.spool, "scalars") if row["metric"] == "ranklake/misuses"]
    assert counted == [1.0]


def test_a_runs_name_that_is_changed_is_told(place, caplog):
    """A slash makes another name of it."""
    with place.start(run="team/gpt") as run:
        assert run.name != "team/gpt"
    (line,) = told(caplog)
    assert "'team/gpt'" in line
    assert repr(run.name) in line


def test_names_of_ones_own_are_no_misspellings(place, caplog):
    """Phases and metrics of a user's own, numbered ones, and every unit that is one."""
    with place.start() as run, run.step(0):
        for name in ("tokenize", "forward_2", "forward/encoder", "data2", "log", *PHASES):
            with run.phase(name):
                pass
        run.log({"loss_2": 1.0, "loss1": 1.0, "aux": 2.0, "reward": 1.0, "lr_2": 0.1})
        for number, unit in enumerate(("ms", "GiBy/s", "{request}/s", "%", "Cel", "kW.h", "us", "{sample}")):
            run.scalar(f"mine/{number}", unit=unit).add(1.0)
        run.event("mine", severity="warning")
    assert told(caplog) == []
    assert closest_name("forward", PHASES) == ""


def test_every_unit_of_ours_is_one():
    """Of the contracts and of the registry."""
    units = {column.unit for contract in load_contracts().values() for column in contract.columns if column.unit}
    units |= {metric.unit for metric in load_metrics().values()}
    assert [unit for unit in sorted(units) if not is_unit(unit)] == []


def test_steps_that_begin_anew_in_each_epoch_are_told_once(place, caplog):
    """A loop over epochs that numbers each from 0; a step that failed and is tried again is none."""
    with place.start() as run:
        for _ in range(3):
            for number in range(3):
                with run.step(number):
                    pass
    (line,) = told(caplog)
    assert "step 0 was repeated in this process" in line
    assert "over all epochs" in line
    caplog.clear()
    with place.start(attempt=1) as run:
        for number in (4, 4, 5, 6, 5, 7):  # tried again, and threads that begin out of order
            with run.step(number):
                pass
    assert told(caplog) == []
