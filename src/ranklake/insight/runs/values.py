"""Values of runs for sorting and filtering: a metric's last value, a summary value, a setting.

A value is named by its kind: ``metric:eval/loss``, ``summary:best_loss``, ``config:optimizer.lr``.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.insight.runs import statements
from ranklake.insight.runs.asking import Ask, Row
from ranklake.insight.runs.find import said_equal, value_of
from ranklake.insight.runs.history import OF_RUN, column_of
from ranklake.lake.contracts.json_text import facts_in
from ranklake.lake.query.literal import literal

KINDS: Final = ("metric", "summary", "config")
_SPELLINGS: Final[Mapping[str, str]] = MappingProxyType(
    {**{kind: kind for kind in KINDS}, "metrics": "metric", "params": "config", "summary_metrics": "summary"}
)
"""Kinds as ranklake, MLflow and wandb write them."""
_FORM: Final = "write metric:NAME (NAME alone for short), summary:NAME or config:NAME"
_VALUE: Final = re.compile(rf"({'|'.join(_SPELLINGS)})[:.](.+)", re.DOTALL)
_BARE: Final = re.compile(r"[^:<>=!\s]+")
"""A metric, named as in a history."""
_CONDITION: Final = re.compile(r"(?P<value>.+?)(?P<sign><=|>=|!=|=|<|>)(?P<operand>[^<>=]*)")
_QUOTED: Final = re.compile(r"(['\"])(.*)\1", re.DOTALL)
_ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = MappingProxyType(
    {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
)
_MOST_NAMES: Final = 10_000
Scalar = float | str | bool


@dataclass(frozen=True, slots=True)
class RunValue:
    """A value of runs: its kind, of `KINDS`, and its name.

    >>> RunValue.parse("metric:eval/loss")
    RunValue(kind='metric', name='eval/loss')
    >>> RunValue.parse("params.lr")  # as MLflow writes it
    RunValue(kind='config', name='lr')
    >>> RunValue.parse("loss")  # as in `Run.history`
    RunValue(kind='metric', name='loss')
    """

    kind: str
    name: str

    @classmethod
    def parse(cls, text: str, option: str = "") -> "RunValue":
        """Parse the name of a value. Raises `RanklakeError`."""
        match = _VALUE.fullmatch(text)
        if match is None and _BARE.fullmatch(text):
            return cls("metric", text)
        if match is None:
            raise RanklakeError(f"{text!r} names no value of runs", where=option, hint=_FORM)
        return cls(_SPELLINGS[match[1]], match[2])


@dataclass(frozen=True, slots=True)
class ValueCondition:
    """A comparison of a run's value with `operand` by a sign (``<``, ``<=``, ``=``, ``!=``, ``>=``, ``>``)."""

    value: RunValue
    sign: str
    operand: str

    @classmethod
    def parse(cls, text: str, option: str = "") -> "ValueCondition":
        """Parse a condition such as ``metric:eval/loss<0.5``. Raises `RanklakeError`."""
        match = _CONDITION.fullmatch(text)
        if match is None:
            hint = f"{_FORM}, a sign and a value: metric:eval/loss<0.5"
            raise RanklakeError(f"{text!r} is no condition", where=option, hint=hint)
        operand = _QUOTED.sub(r"\2", match["operand"].strip())
        condition = cls(RunValue.parse(match["value"].strip(), option), match["sign"], operand)
        if condition.sign in _ORDERS and _number(condition.operand) is None:
            flaw = f"{condition.operand!r} is no number"
            raise RanklakeError(flaw, where=option, hint=f"{condition.sign} compares numbers")
        return condition

    def holds(self, actual: Scalar) -> bool:
        """Whether a value meets the condition."""
        if self.sign in {"=", "!="}:
            return said_equal(actual, self.operand) == (self.sign == "=")
        number = actual if isinstance(actual, int | float) and not isinstance(actual, bool) else _number(str(actual))
        return number is not None and _ORDERS[self.sign](number, _number(self.operand))


def values_of_runs(ask: Ask, value: RunValue) -> dict[str, Scalar]:
    """Return the value for each run that has it.

    For a metric, it is the last finite value: over all ranks for columns of steps (``loss``, also as ``train/loss``),
    else of the lowest rank, by time. For summary values and settings, it is the current one.

    Raises
    ------
    RanklakeError
        No run has such a value.
    UnseenError
        The role does not see them.
    """
    values = _READERS[value.kind](ask, value.name)
    if not values:
        names = _NAMES[value.kind](ask)
        others = [name for name in names if name != value.name]
        raise RanklakeError(f"no run has {value.kind}:{value.name}", hint=did_you_mean(value.name, others))
    return values


def runs_where(ask: Ask, conditions: Iterable[ValueCondition]) -> tuple[str, ...] | None:
    """Return the runs that meet all conditions; None without conditions. Raises what `values_of_runs` raises."""
    runs: set[str] | None = None
    for condition in conditions:
        values = values_of_runs(ask, condition.value)
        meeting = {run for run, actual in values.items() if condition.holds(actual)}
        runs = meeting if runs is None else runs & meeting
    return None if runs is None else tuple(sorted(runs))


def sorted_by(rows: Sequence[Row], values: Mapping[str, Scalar], *, is_highest_first: bool = False) -> list[Row]:
    """Sort rows of runs by a value: numbers before texts, runs without a value last."""
    known = [row for row in rows if row["run"] in values]
    numbers = [row for row in known if not isinstance(values[row["run"]], str)]
    texts = [row for row in known if isinstance(values[row["run"]], str)]
    ordered = [
        *sorted(numbers, key=lambda row: values[row["run"]], reverse=is_highest_first),
        *sorted(texts, key=lambda row: values[row["run"]], reverse=is_highest_first),
    ]
    return [*ordered, *(row for row in rows if row["run"] not in values)]


def _metrics(ask: Ask, name: str) -> dict[str, Scalar]:
    answers = [ask(statements.last_values(f"metric = {literal(name)}"))]
    if column := column_of(name):  # values from steps take precedence, as in a run's history
        table, value = OF_RUN[column]
        answers.append(
            ask(
                "SELECT run, last_value(value ORDER BY attempt, step) AS value\n"  # noqa: S608 - constants
                f"FROM (SELECT run, attempt, step, {value} AS value FROM {table}) AS every\n"
                "WHERE abs(value) < CAST('Infinity' AS DOUBLE)\nGROUP BY run\n"
            )
        )
    seen = [answer for answer in answers if not answer.reason] or [answers[-1].seen()]
    return {row["run"]: row["value"] for answer in seen for row in answer.rows}


def _summaries(ask: Ask, name: str) -> dict[str, Scalar]:
    rows = ask(statements.annotations(f"kind = 'summary' AND key = {literal(name)}")).seen().rows
    values = {row["run"]: row["value"] if row["number"] is None else row["number"] for row in rows}
    return {run: value for run, value in values.items() if value is not None}


def _settings(ask: Ask, name: str) -> dict[str, Scalar]:
    values: dict[str, Scalar] = {}
    for row in ask("SELECT run, config FROM runs WHERE config IS NOT NULL ORDER BY run, attempt, ts").seen().rows:
        value = value_of(facts_in(row["config"]), name)
        if isinstance(value, int | float | str):
            values[row["run"]] = value
    return values


def _metric_names(ask: Ask) -> list[str]:
    logged = ask(f"SELECT DISTINCT metric FROM scalars LIMIT {_MOST_NAMES}").rows  # noqa: S608 - a number
    return sorted({*OF_RUN, *(row["metric"] for row in logged)})


def _summary_names(ask: Ask) -> list[str]:
    return sorted({row["key"] or "" for row in ask(statements.annotations("kind = 'summary'")).rows})


def _setting_names(ask: Ask) -> list[str]:
    rows = ask(f"SELECT config FROM runs WHERE config IS NOT NULL LIMIT {_MOST_NAMES}").rows  # noqa: S608 - a number
    return sorted({name for row in rows for name in facts_in(row["config"])})


_READERS: Final[Mapping[str, Callable[[Ask, str], dict[str, Scalar]]]] = MappingProxyType(
    {"metric": _metrics, "summary": _summaries, "config": _settings}
)
_NAMES: Final[Mapping[str, Callable[[Ask], list[str]]]] = MappingProxyType(
    {"metric": _metric_names, "summary": _summary_names, "config": _setting_names}
)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
