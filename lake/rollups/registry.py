"""Every rollup: its SQL file, what it reads, and its parameters."""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from functools import cache, cached_property, partial
from importlib.resources import files
from typing import Final, Literal, NamedTuple

import pyarrow as pa

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.mfu.peaks import DTYPES, name_key, peak_rows
from ranklake.lake.rollups.prices import price_table
from ranklake.lake.rollups.pseudonyms import pseudonym_table

WARMUP_STEPS: Final = 10
"""First steps of a day that are not compared: caches fill, kernels are chosen, allocators grow."""
MIN_STEPS: Final = 50
"""Steps that a comparison of ranks needs; fewer say nothing about steadiness."""
MIN_EXCESS_RATIO: Final = 0.10
"""Median excess over its peers that makes a rank worth naming: below it noise of a shared machine looks alike."""
MIN_SLOWER_RATIO: Final = 0.90
"""Share of steps in which a straggler is slower than its peers: a bad quarter of an hour is not a slow rank."""
MAX_P_VALUE: Final = 1e-6
"""Chance at which a verdict stands: one in a million, so that ten thousand ranks give no false name by chance."""
MIN_BURST_RATIO: Final = 0.04
"""Excess beyond a rank's usual one from which a step counts as slow, however quiet the machine."""
BURST_DEVIATIONS: Final = 3.5
"""The same in robust deviations of the excess, the rank's own or all ranks', whichever is more."""
BURST_GAP_STEPS: Final = 3
"""Slow steps no further apart are one episode: what takes a core away takes it for some steps."""
MIN_BURST_STEP_RATIO: Final = 0.003
"""Share of slow steps that makes a rank worth naming."""
MAX_BURST_CHANCE: Final = 1e-5
"""Chance at which any rank of a run would have so many of the episodes, if all were alike."""
HANG_FACTOR: Final = 10.0
"""Median step times beyond which a step is a start (the first) or a hang."""
STALL_S: Final = 60
"""Seconds without anything known that count as a stall; shorter gaps are unattributed."""
QUIET_DAYS: Final = 31
"""Days in a row without any sign that have a row of goodput each; more of them have one together."""
MAX_PLAUSIBLE_RATIO: Final = 0.9
"""Share of a published dense peak that training does not reach: bare matrix products reach 86 % of an A100's, 83 % of a
GH200's, 80 % of an H100's (Bekman, Machine Learning Engineering, table of maximum achievable matmul FLOPS)."""

MAX_INTERVAL_S: Final = 300
"""Longest time that one sample speaks for: beyond it there is a gap."""
MAX_WATTS: Final = 2_000
"""More than any device draws: a counter of energy cannot grow faster."""
PUE_VARIABLE: Final = "RANKLAKE_POWER_USAGE_EFFECTIVENESS"
"""Environment variable with the facility's energy over its devices'."""
MAX_DAYS: Final = 400
"""Days from a row's date beyond which a time in it is a clock's fault."""
MAX_SNAPSHOT_S: Final = 900
"""Longest time that a snapshot of a pool stands for, if it does not say itself."""
HELD_RATIO: Final = 0.9
"""Share of an hour from which a node counts as held all along."""
LOW_RATIO: Final = 0.1
"""Utilisation below which a node that is held counts as low."""

PRICES: Final = "prices"
"""Lookup of the operator's prices, which a lake is opened with."""

_HEAD: Final = re.compile(r"^-- (into|view) (\w+):", re.MULTILINE)
Reach = Literal["day", "days", "until", "over", "run"]
Scope = Literal["partition", "run"]


class UnknownRollupError(RanklakeError):
    """No rollup has this name."""


@dataclass(frozen=True, slots=True)
class Input:
    """A table that a rollup reads.

    Attributes
    ----------
    table
        Its name.
    reach
        Which dates of it an output date depends on: that ``day``; ``days``, with the day before and the day after;
        ``until``, that day and all before; ``over``, those of which a row's time goes over it, as the statistics in the
        Delta log have it; ``run``, whatever dates the runs have that began on the output date.
    begin, end
        With ``over``: columns that a row's time begins and ends with; where the first is NULL or more than `MAX_DAYS`
        from the row's date, the next one, at last the date.
    """

    table: str
    reach: Reach
    begin: tuple[str, ...] = ()
    end: tuple[str, ...] = ()

    def days(self, day: date) -> tuple[date, ...] | None:
        """Return the dates of the table that an output date depends on; None where they are not bounded."""
        around = {"day": (0,), "days": (-1, 0, 1)}.get(self.reach)
        return None if around is None else tuple(day + timedelta(days=offset) for offset in around)


class Query(NamedTuple):
    """One query of a rollup's file: ``into`` a table in memory, a ``view``, or the ``result``."""

    kind: str
    name: str
    text: str


@dataclass(frozen=True)
class Rollup:
    """One derived table.

    Attributes
    ----------
    name
        Of the rollup, its SQL file and its table.
    scope
        ``partition``: an output date is computed from input dates. ``run``: an output date holds the runs that began
        on it, each computed as a whole.
    inputs
        What it reads.
    leads
        How many of the inputs, from the first, say which dates of a partition rollup there are.
    parameters
        Values for the SQL's ``$names``, besides ``$date`` and ``$begin`` of partition rollups.
    lookups
        Small constant tables that the SQL names, by name.
    cut
        Integer column of the first input, part of the SQL's group key, by which large dates are computed in pieces,
        from ``$first`` to ``$last`` each; of a rollup that is one query, since pieces share a session.
    in_a_row
        Whether the SQL computes any number of dates at once, ``$days`` of them from ``$date`` to ``$last``.
    """

    name: str
    scope: Scope
    inputs: tuple[Input, ...]
    parameters: Mapping[str, float] = field(default_factory=dict)
    lookups: Mapping[str, Callable[[], pa.Table]] = field(default_factory=dict)
    leads: int = 1
    cut: str = ""
    in_a_row: bool = False

    @cached_property
    def sql(self) -> str:
        """Text of the SQL file, ``exact_sum(x)`` spelt out: see `_EXACT`."""
        return _EXACT.sub(_exact_sum, files(__package__).joinpath(f"{self.name}.sql").read_text(encoding="utf-8"))

    @property
    def queries(self) -> list[Query]:
        """The file's queries, in order.

        All but the last are headed ``-- into NAME: …`` or ``-- view NAME: …``, the name that later ones read them by:
        what is put into a table is computed once, a view each time it is read, without being held in memory.
        """
        found = []
        for text in self.sql.split(";\n\n"):
            heads = _HEAD.findall(text)
            kind, name = heads[-1] if heads else ("result", "")
            found.append(Query(kind, name, text))
        return found

    @cached_property
    def sha256(self) -> str:
        """Digest of all that determines the output besides the inputs: SQL, parameters, lookups."""
        lookups = {name: make().to_pylist() for name, make in self.lookups.items()}
        facts = [self.sql, sorted(self.parameters.items()), lookups]
        return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return tuple(item.table for item in self.inputs)


_EXACT: Final = re.compile(r"\bexact_sum\((?P<of>[^()]+)\)")
"""A sum of whole numbers that is NULL where 64 bits do not hold it; DataFusion's own wraps round and says nothing.

One of floats beside it tells, since it is wrong by far less than half a range. Products are made as floats there, too,
so `x` is a column, a product or a quotient.
"""


def _exact_sum(found: re.Match[str]) -> str:
    of = found["of"]
    return f"CASE WHEN abs(sum(1e0 * {of})) < 9.2e18 THEN sum({of}) END"


@cache
def _peaks() -> pa.Table:
    return pa.Table.from_pylist([row for row in peak_rows() if row["dtype"] == row["canonical_dtype"]])


@cache
def _dtypes() -> pa.Table:
    words = {name_key(word): dtype for dtype, others in DTYPES.items() for word in (dtype, *others)}
    return pa.table({"word": list(words), "dtype": list(words.values())})


def _facility() -> pa.Table:
    """Return what is assumed of the building: one row, NULL where nothing was said."""
    said = os.environ.get(PUE_VARIABLE, "")
    try:
        effectiveness = float(said) if said else None
    except ValueError:
        effectiveness = math.nan
    if effectiveness is not None and not 1 <= effectiveness < math.inf:
        raise RanklakeError(
            "is no power usage effectiveness", where=PUE_VARIABLE, mend="give facility over device energy, such as 1.2"
        )
    return pa.table({"power_usage_effectiveness": pa.array([effectiveness], pa.float64())})


_STRAGGLERS: Final = {
    "warmup_steps": WARMUP_STEPS,
    "min_steps": MIN_STEPS,
    "min_excess_ratio": MIN_EXCESS_RATIO,
    "min_slower_ratio": MIN_SLOWER_RATIO,
    "max_p_value": MAX_P_VALUE,
    "min_burst_ratio": MIN_BURST_RATIO,
    "burst_deviations": BURST_DEVIATIONS,
    "burst_gap_steps": BURST_GAP_STEPS,
    "min_burst_step_ratio": MIN_BURST_STEP_RATIO,
    "max_burst_chance": MAX_BURST_CHANCE,
}
ROLLUPS: Final = (
    Rollup("run_facts", "partition", (Input("scalars", "day"),)),
    Rollup("step_rollup", "partition", (Input("steps", "days"),), cut="step"),
    Rollup("rank_health", "partition", (Input("steps", "days"),), _STRAGGLERS),
    Rollup("attempt_facts", "run", (Input("runs", "run"), Input("step_rollup", "run")), lookups={"dtypes": _dtypes}),
    Rollup("rank_facts", "run", (Input("run_facts", "run"), Input("attempt_facts", "run"))),
    Rollup(
        "mfu",
        "partition",
        (Input("steps", "day"), Input("attempt_facts", "until"), Input("rank_facts", "until")),
        {"max_plausible_ratio": MAX_PLAUSIBLE_RATIO},
        lookups={"peaks": _peaks},
    ),
    Rollup("step_mfu", "partition", (Input("step_rollup", "day"), Input("mfu", "day"))),
    Rollup("run_epochs", "partition", (Input("scalars", "day"),)),
    Rollup(
        "goodput_daily",
        "run",
        tuple(
            Input(table, "run") for table in ("step_rollup", "run_epochs", "spans", "events", "runs", "attempt_facts")
        ),
        {"hang_factor": HANG_FACTOR, "stall_s": STALL_S, "quiet_days": QUIET_DAYS},
    ),
    Rollup(
        "goodput",
        "run",
        tuple(Input(table, "run") for table in ("goodput_daily", "step_rollup", "spans", "events", "runs")),
    ),
    Rollup("run_goodput", "run", (Input("goodput", "run"), Input("runs", "run"))),
    Rollup(
        "run_summary",
        "run",
        tuple(
            Input(table, "run")
            for table in ("attempt_facts", "events", "step_rollup", "rank_health", "mfu", "goodput", "run_goodput")
        ),
    ),
    Rollup(
        "gpu_hourly",
        "partition",
        (Input("gpu_samples", "day"), Input("events", "day"), Input("attempt_facts", "until")),
        {"max_interval_s": MAX_INTERVAL_S, "max_watts": MAX_WATTS},
    ),
    Rollup(
        "job_facts",
        "partition",
        (Input("jobs", "over", begin=("submit_ts", "start_ts"), end=("submit_ts", "start_ts")),),
        {"max_days": MAX_DAYS},
    ),
    Rollup(
        "cluster_hourly",
        "partition",
        (
            Input("pools", "days"),
            Input("job_facts", "over", end=("until_ts",)),
            Input("gpu_hourly", "day"),
            Input("attempt_facts", "until"),
        ),
        {"max_snapshot_s": MAX_SNAPSHOT_S, "held_ratio": HELD_RATIO, "low_ratio": LOW_RATIO},
        lookups={"facility": _facility, "pseudonyms": pseudonym_table},
        leads=3,
        in_a_row=True,
    ),
    Rollup(
        "cost",
        "partition",
        (
            Input("goodput_daily", "day"),
            Input("gpu_hourly", "day"),
            Input("job_facts", "over", end=("until_ts",)),
            Input("attempt_facts", "until"),
        ),
        lookups={PRICES: partial(price_table, "")},
        leads=3,
    ),
)
"""In an order in which each comes after what it reads."""


def chosen(names: Iterable[str] | None = None, prices: str = "") -> tuple[Rollup, ...]:
    """Return the rollups of these names and those that they read, in order; all without names.

    `prices` names the operator's price table, for those that ask for one. Raises `UnknownRollupError` with the nearest
    name.
    """
    by_name = {rollup.name: rollup for rollup in ROLLUPS}
    wanted: set[str] = set()
    pending = list(by_name if names is None else names)
    while pending:
        name = pending.pop()
        if name not in by_name:
            raise UnknownRollupError(f"no rollup is called {name!r}", mend=did_you_mean(name, by_name))
        if name not in wanted:
            wanted.add(name)
            pending += [table for table in by_name[name].tables if table in by_name]
    found = tuple(rollup for rollup in ROLLUPS if rollup.name in wanted)
    if not prices:
        return found
    lookup = {PRICES: partial(price_table, prices)}
    return tuple(replace(one, lookups={**one.lookups, **lookup}) if PRICES in one.lookups else one for one in found)
