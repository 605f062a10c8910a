"""Caveats: numbers of runs that are doubtful, because their input rows failed a check."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from types import MappingProxyType
from typing import Final

from ranklake.insight.runs import statements
from ranklake.insight.runs.asking import Ask, QueriedFacts

_ALL: Final = (
    *("steps", "tokens", "last_loss", "tokens_per_s", "mean_step_time_s", "mfu_ratio", "goodput_ratio", "wall_ns"),
    *("restarts", "world_size", "straggler_rank"),
)
_TIMES: Final = ("mean_step_time_s", "tokens_per_s", "mfu_ratio", "goodput_ratio", "straggler_rank")
_MADE_OF: Final[Mapping[tuple[str, str], tuple[str, ...]]] = MappingProxyType(
    {
        ("steps", "step"): _ALL,
        ("steps", "tokens"): ("tokens", "tokens_per_s", "mfu_ratio"),
        ("steps", "samples"): (),
        ("steps", "loss"): ("last_loss",),
        ("steps", "grad_norm"): (),
        ("steps", "lr"): (),
        ("steps", "step_time_s"): _TIMES,
        ("steps", "collective_time_s"): ("straggler_rank",),
        ("steps", "checkpoint_time_s"): ("goodput_ratio",),
        ("steps", "evaluation_time_s"): ("goodput_ratio",),
        ("steps", "run,attempt,rank,step"): _ALL,
        ("runs", "world_size"): ("world_size", "goodput_ratio"),
        ("runs", "device_count"): ("mfu_ratio",),
        ("runs", "compute_dtype"): ("mfu_ratio",),
        ("step_rollup", "tokens"): ("tokens", "tokens_per_s"),
        ("step_rollup", "mean_loss"): ("last_loss",),
        ("step_rollup", "sum_step_time_ns"): _TIMES,
        ("run_summary", "run_goodput_ratio"): ("goodput_ratio",),
        ("events", "duration_ns"): ("goodput_ratio",),
        ("spans", "duration_ns"): ("goodput_ratio",),
    }
)
"""Columns of ``summary.sql`` by the table and the columns that a check is about."""

_FACTS: Final = frozenset({"runs", "steps", "scalars", "events", "spans", "ranks"})
_OF_RUNS: Final = frozenset(
    {"step_rollup", "mfu", "step_mfu", "goodput_daily", "goodput", "run_goodput", "run_summary"}
)
"""Derived tables whose columns a summary has under the same names."""


@dataclass(frozen=True, slots=True)
class FailedCheck:
    """A failed check of a run's rows.

    Attributes
    ----------
    numbers
        Columns of ``summary.sql`` computed from these rows; empty if there are none.
    """

    table: str
    column: str
    check_id: str
    severity: str
    day: date
    rows: int
    numbers: tuple[str, ...]

    @property
    def about(self) -> str:
        """The failure, such as ``steps.tokens: tokens_not_negative on 2026-03-01``."""
        name = f"{self.table}.{self.column}" if self.column else self.table
        return f"{name}: {self.check_id} on {self.day}"


@dataclass(frozen=True, slots=True)
class Caveats:
    """Caveats of the numbers of some runs.

    Attributes
    ----------
    failed
        Failed checks by run; runs without any are left out.
    answered
        The query's answer, with a reason if the role does not see results of checks.
    """

    failed: Mapping[str, tuple[FailedCheck, ...]] = field(default_factory=dict)
    answered: QueriedFacts = field(default_factory=lambda: QueriedFacts(""))

    def of(self, run: str, column: str) -> str:
        """Return why a number of a run is doubtful; empty if it is not."""
        return "; ".join(one.about for one in self.failed.get(run, ()) if column in one.numbers)


def caveats(ask: Ask, runs: Iterable[str]) -> Caveats:
    """Return caveats of the numbers of some runs, from the last checks of their inputs."""
    wanted = set(runs)
    answer = ask(statements.failed_checks())
    failed: dict[str, list[FailedCheck]] = {}
    for row in answer.rows:
        column = row["column"] or ""
        numbers = _MADE_OF.get((row["table"], column), (column,) if row["table"] in _OF_RUNS else ())
        check = FailedCheck(
            row["table"], column, row["check_id"], row["severity"], row["partition_date"], row["rows_failed"], numbers
        )
        for run in wanted.intersection(json.loads(row["runs"])):
            failed.setdefault(run, []).append(check)
    return Caveats({run: tuple(_first_causes(some)) for run, some in failed.items()}, answer)


def _first_causes(failed: Sequence[FailedCheck]) -> list[FailedCheck]:
    """Merge failed checks with their repetitions in derived tables; each has the numbers of all of them."""
    first_by_key: dict[tuple[str, str, date], FailedCheck] = {}
    for check in sorted(failed, key=lambda check: check.table not in _FACTS):
        key = (check.column, check.check_id, check.day)
        first = first_by_key.setdefault(key, check)
        first_by_key[key] = replace(first, numbers=tuple(dict.fromkeys((*first.numbers, *check.numbers))))
    return list(first_by_key.values())
