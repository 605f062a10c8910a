"""The kinds of steps, and reading one from a migration's file."""

from collections.abc import Callable, Mapping
from datetime import date
from typing import Any, Final

from ranklake.errors import did_you_mean
from ranklake.lake.contracts.schema import problems, schema
from ranklake.lake.migrations.steps.columns import Add, Convert, Drop, Rename, RenameTable, Retype
from ranklake.lake.migrations.steps.computed import Merge, Split
from ranklake.lake.migrations.steps.step import Step
from ranklake.operator_files import OperatorFile

KINDS: Final[Mapping[str, Callable[..., Step]]] = {
    "add": Add,
    "rename": Rename,
    "drop": Drop,
    "retype": Retype,
    "convert": Convert,
    "split": Split,
    "merge": Merge,
    "rename_table": RenameTable,
}
"""Classes of steps by first key; what else stands in one is ``$defs/step_<first key>`` of the contracts' schema."""


def read_steps(file: OperatorFile) -> tuple[Step, ...]:
    """Return the steps of a migration's file as far as they are sound; what is not is noted with the file."""
    steps = []
    for index, facts in enumerate(file.content["steps"]):
        at, first = ("steps", index), str(next(iter(facts)))
        if first not in KINDS:
            file.add(at, f"{first!r} is no kind of step", did_you_mean(first, KINDS))
            continue
        faults = list(problems(facts, schema(f"step_{first}"), at))
        for fault in faults:
            file.add(fault.at, fault.message, fault.hint)
        if not faults:
            try:
                steps.append(step_of(facts))
            except ValueError:
                file.add((*at, "until"), f"there is no day {facts['until']}", "write until: 2027-06-30")
    return tuple(steps)


def step_of(facts: Mapping[str, Any]) -> Step:
    """Return the step that a sound line of a migration's file says. Raises `ValueError` for a day that is none."""
    (_, first), *rest = facts.items()
    make = KINDS[next(iter(facts))]
    return make(_freeze(first), **{key: _day(value) if key == "until" else _freeze(value) for key, value in rest})


def _day(value: str | date) -> date:
    return value if isinstance(value, date) else date.fromisoformat(value)


def _freeze(value: Any) -> Any:  # noqa: ANN401 - whatever YAML gives
    """Return a value that a frozen step may hold: lists and mappings as tuples."""
    if isinstance(value, dict):
        return tuple(value.items())
    return tuple(value) if isinstance(value, list) else value
