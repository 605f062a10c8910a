"""Compares telemetry with the truth: one `Comparison` per claim, each with its tolerance."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.recover import recover
from ranklake.config import Config
from ranklake.context import Context
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake import Lake
from ranklake.pipeline.stages import pipeline_once

if TYPE_CHECKING:
    from ranklake.calibration.truth import Truth

TIME_RATIO: Final = 0.02
"""Durations: the median over all steps of |telemetry / truth - 1|. A mean would be dominated by pauses of the
machine."""
CLOCK_S: Final = 0.005
"""Times: the median over all steps of |telemetry - truth|."""
_STEPS: Final = "SELECT rank, step, ts, step_time_s, data_time_s, forward_time_s FROM steps WHERE run = $run"
_COUNTS: Final = (
    ("rows of steps", "{row}", "SELECT count(*) AS n FROM steps WHERE run = $run"),
    ("tokens", "{token}", "SELECT sum(tokens) AS n FROM steps WHERE run = $run"),
    ("samples", "{sample}", "SELECT sum(samples) AS n FROM steps WHERE run = $run"),
    (
        "sum of a logged scalar",
        "1",
        "SELECT sum(value) AS n FROM scalars WHERE run = $run AND metric = 'calibration/square'",
    ),
    ("bytes reduced", "By", "SELECT sum(bytes) AS n FROM spans WHERE run = $run AND name = 'all_reduce'"),
    ("bytes written", "By", "SELECT sum(bytes) AS n FROM spans WHERE run = $run AND name = 'write'"),
    (
        "FLOPs of matrix products",
        "FLOP",
        "SELECT max(value) AS n FROM scalars WHERE run = $run AND metric = 'model/flops_per_step'",
    ),
)
_SLOW: Final = "SELECT rank FROM rank_health WHERE run = $run AND is_straggler ORDER BY rank"
_MISSING: Final = """
SELECT sum(rows_failed) AS n FROM quality_results
WHERE check_id = 'steps_of_all_ranks' AND status = 'failed' AND observed LIKE '%' || $run || '%'
"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One claim of telemetry.

    Attributes
    ----------
    what, unit
        The quantity, and its unit in UCUM; ``none`` for names.
    truth, telemetry
        True value, and the value in the tables; None if the tables have none. For `time` both are sums over all steps.
    error, tolerance
        Actual and allowed difference: 0 for counts, else `TIME_RATIO` or `CLOCK_S`. None if unknown.
    """

    what: str
    unit: str
    truth: float | str
    telemetry: float | str | None
    error: float | None
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether it is within its tolerance."""
        return self.error is not None and self.error <= self.tolerance

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**{name: getattr(self, name) for name in self.__dataclass_fields__}, "passed": self.passed}


def compare_at(lake: Path, spool: Path, truth: "Truth") -> list[Comparison]:
    """Call `compare` for a lake and a spool in folders."""
    return compare(Lake.open(str(lake)), Spool(str(spool)), truth)


def compare(lake: "Lake", spool: "Spool", truth: "Truth") -> list[Comparison]:
    """Return the comparisons of an experiment's run with the lake, after ingest, check and rollup."""
    return [*_counts(lake, truth), *_times(lake, truth), *_verdicts(lake, spool, truth)]


def _counts(lake: "Lake", truth: "Truth") -> Iterator[Comparison]:
    known = {
        "rows of steps": len(truth.steps),
        "tokens": truth.tokens,
        "samples": truth.samples,
        "sum of a logged scalar": truth.squares,
        "bytes reduced": truth.reduced_bytes,
        "bytes written": truth.written_bytes,
        "FLOPs of matrix products": truth.flops,
    }
    for name, unit, text in _COUNTS:
        yield _exact(name, unit, known[name], _first_value(lake, text, truth))


def _times(lake: "Lake", truth: "Truth") -> Iterator[Comparison]:
    rows = query(lake, _STEPS, {"run": truth.run}).to_pylist()
    recorded: Mapping[tuple[int, int], dict[str, Any]] = {(row["rank"], row["step"]): row for row in rows}
    pairs = [(step, recorded[step.rank, step.step]) for step in truth.steps if (step.rank, step.step) in recorded]
    for name, column, field in (
        ("step time", "step_time_s", "step_ns"),
        ("waiting for data", "data_time_s", "data_ns"),
        ("forward pass", "forward_time_s", "forward_ns"),
    ):
        times = [(getattr(step, field) / 1e9, row[column]) for step, row in pairs if row[column] is not None]
        errors = [abs(recorded_s / true_s - 1) for true_s, recorded_s in times]
        sums = (sum(true_s for true_s, _ in times), sum(recorded_s for _, recorded_s in times))
        error = median(errors) if errors else None
        yield Comparison(name, "s", sums[0], sums[1] if times else None, error, TIME_RATIO)
    offsets = [abs(row["ts"].timestamp() - step.began_ns / 1e9) for step, row in pairs]
    error = median(offsets) if offsets else None
    yield Comparison("when steps began", "s", 0.0, error, error, CLOCK_S)


def _verdicts(lake: "Lake", spool: "Spool", truth: "Truth") -> Iterator[Comparison]:
    yield _exact("steps found missing", "{step}", truth.missing, _first_value(lake, _MISSING, truth))
    slow = ", ".join(f"rank {row['rank']}" for row in query(lake, _SLOW, {"run": truth.run}).to_pylist())
    true = f"rank {truth.slow_rank}"
    yield Comparison("which rank is slow", "none", true, slow or None, float(slow != true), 0.0)
    lost = sum(len(table.faults) for table in balance(lake, spool.listing()))
    yield _exact("books that do not add up", "{row}", 0, lost)


def _exact(what: str, unit: str, true: float, recorded: float | None) -> Comparison:
    return Comparison(what, unit, true, recorded, None if recorded is None else abs(float(recorded) - true), 0.0)


def _first_value(lake: "Lake", text: str, truth: "Truth") -> float | None:
    (row,) = query(lake, text, {"run": truth.run}).to_pylist()
    result: float | None = row["n"]
    return result


FEWEST_STEPS: Final = 90
"""With fewer steps a slow rank cannot be distinguished from chance."""


def measure(folder: Path, truth: "Truth") -> list[Comparison]:
    """Run the pipeline on the record of `ranklake.calibration.truth.experiment` in a folder, and compare."""
    lake, spool = folder / "lake", folder / "spool"
    recover(folder / "local", str(spool))
    pipeline_once(Context.of(Config(), {"lake.uri": str(lake), "spool.uri": str(spool)}))
    return compare_at(lake, spool, truth)
