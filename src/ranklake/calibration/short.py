"""The short form of calibration: fewest steps, and the pipeline's stages in this process instead of on Prefect."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from ranklake.calibration.compare import Comparison, compare_at
from ranklake.capture.recover import recover
from ranklake.config import Config
from ranklake.context import Context
from ranklake.pipeline.stages import pipeline_once

if TYPE_CHECKING:
    from ranklake.calibration.truth import Truth

FEWEST_STEPS: Final = 90
"""Fewer do not tell a slow rank from chance."""


def measure(folder: Path, truth: "Truth") -> list[Comparison]:
    """Bring the record of `ranklake.calibration.truth.experiment` in a folder through the pipeline, and compare."""
    lake, spool = folder / "lake", folder / "spool"
    recover(folder / "local", str(spool))
    pipeline_once(Context.of(Config(), {"lake.uri": str(lake), "spool.uri": str(spool)}))
    return compare_at(lake, spool, truth)
