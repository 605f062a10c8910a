"""``ranklake calibrate``."""

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ranklake.calibration.compare import FEWEST_STEPS, Comparison, compare_at
from ranklake.calibration.truth import RANKS, experiment
from ranklake.capture.recover import recover
from ranklake.commands.options import json_option
from ranklake.flows.embedded import run_pipeline
from ranklake.flows.settings import FlowSettings
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell

if TYPE_CHECKING:
    from collections.abc import Iterator

_COLUMNS = (
    TextColumn("what"),
    *numbers(("truth", "telemetry")),
    TextColumn("unit"),
    *numbers(("error", "tolerance")),
    TextColumn(""),
)


@click.command()
@click.option(
    "--steps",
    type=click.IntRange(FEWEST_STEPS),
    default=120,
    show_default=True,
    help="Steps of each of the two ranks.",
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the spool, the lake and the truth; by default they are deleted.",
)
@json_option
def calibrate(steps: int, folder: Path | None, *, as_json: bool) -> int:
    """Record an experiment of known truth, run the whole pipeline on it, and compare.

    Two ranks on this machine sleep, multiply matrices, reduce a tensor and write a file of known size in each step; one
    is slowed down, one leaves steps out. Each also measures this independently of ranklake. Exits 1 if telemetry
    differs from the truth by more than its tolerance.
    """
    with _place(folder) as place:
        tell(f"1/3 {steps} steps on {RANKS} ranks", err=True)
        truth = experiment(place, steps)
        recover(place / "local", str(place / "spool"))
        tell("2/3 ingest, check, rollup: Prefect flows on a Dask cluster", err=True)
        run_pipeline(FlowSettings(str(place / "lake"), str(place / "spool"), dask_workers=2), place / "prefect")
        tell("3/3 comparing", err=True)
        result = compare_at(place / "lake", place / "spool", truth)
    passed = all(one.passed for one in result)
    if as_json:
        show_json({"run": truth.run, "passed": passed, "comparisons": [one.plain() for one in result]})
    else:
        tell(*table_lines(_COLUMNS, map(_line, result)))
        wrong = sum(not one.passed for one in result)
        tell(
            "telemetry agrees with the truth"
            if passed
            else f"telemetry differs in {wrong} of {len(result)} comparisons"
        )
    return 0 if passed else 1


@contextmanager
def _place(folder: Path | None) -> "Iterator[Path]":
    """Yield the folder, or a temporary one."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder.resolve()
        return
    place = Path(tempfile.mkdtemp(prefix="ranklake-calibrate-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _line(comparison: Comparison) -> tuple[str, ...]:
    figures = map(_number_text, (comparison.error, comparison.tolerance))
    return (
        comparison.what,
        _number_text(comparison.truth),
        _number_text(comparison.telemetry),
        comparison.unit,
        *figures,
        "" if comparison.passed else "WRONG",
    )


def _number_text(value: float | str | None) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4f}"
