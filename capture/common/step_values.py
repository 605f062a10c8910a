"""Step values: values that `run.log` writes into the row of the running step, and their names as metrics."""

from typing import Final

from ranklake.capture.common.layouts import STEP_FLOATS

STEP_COUNTS: Final = frozenset({"tokens", "samples"})
STEP_NAMES: Final = {
    **{name: name for name in (*STEP_FLOATS, *STEP_COUNTS)},
    **{f"train/{name}": name for name in STEP_FLOATS},
}
"""Columns of ``steps`` by the names that `run.log` takes for them."""

METRIC_OF: Final = {name: f"train/{name}" for name in (*STEP_FLOATS, *STEP_COUNTS)}
"""The same values as metrics, for when no step is running."""
