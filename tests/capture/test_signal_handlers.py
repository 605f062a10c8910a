"""Signal handlers that record: wherever they come in between, no value of theirs or of the training's is lost."""

import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import pytest
from recorded import check_books, gaps, rows

_THEIRS = 1_000_000
_TESTS = str(Path(__file__).parents[1])


def train(run, number):
    with run.step(number, tokens=8):
        run.log(loss=float(number))
        run.log(lr=0.5, mine=float(number))
        run.log(grad_norm=1.0)


def with_a_step(run, number):
    with run.step(_THEIRS + number, tokens=9):
        run.log(loss=float(_THEIRS + number))
        run.log(lr=0.25, theirs=float(number))


def without_one(run, number):
    run.log(grad_norm=2.0, theirs=float(number))


def interrupted(run, number, line, handler):
    """Train a step, in whose so-manieth line of capture's code a handler runs; False if there are fewer."""
    passed = 0

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal passed
        path = frame.f_code.co_filename
        if "/capture/" not in path or path.startswith(_TESTS):
            return None
        if event == "line" and passed < line:
            passed += 1
            if passed == line:
                sys.settrace(None)
                handler(run, number)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        train(run, number)
    finally:
        sys.settrace(before)
    return passed == line


@pytest.mark.parametrize("handler", [with_a_step, without_one])
def test_a_handler_between_any_two_lines_costs_no_value(place, handler):
    """Each value is in its step's row, or a metric of that step, once; whether the handler has a step of its own."""
    run = place.start(samplers="off")
    train(run, 0)
    number = 1
    while interrupted(run, number, number, handler):
        number += 1
    run.close()
    assert number > 100
    steps = {row["step"]: row for row in rows(place.spool, "steps")}
    metrics = Counter((row["step"], row["metric"], row["value"]) for row in rows(place.spool, "scalars"))

    def times(step, name, value):
        return int(step in steps and steps[step][name] == value) + metrics[step, f"train/{name}", value]

    for step in range(1, number):
        due = [(step, "loss", step), (step, "lr", 0.5), (step, "grad_norm", 1.0), (step, "tokens", 8)]
        if handler is with_a_step:
            theirs = _THEIRS + step
            due += [(theirs, "loss", theirs), (theirs, "lr", 0.25), (theirs, "tokens", 9)]
            assert metrics[theirs, "theirs", step] == 1
        else:  # before the step begins, its values belong to the one before
            assert sum(times(at, "grad_norm", 2.0) for at in (step - 1, step)) >= 1
            assert metrics[step - 1, "theirs", step] + metrics[step, "theirs", step] == 1
        assert [times(*value) for value in due] == [1] * len(due), step
        assert metrics[step, "mine", step] == 1
    assert gaps(place.spool) == {}
    check_books(place.spool)
