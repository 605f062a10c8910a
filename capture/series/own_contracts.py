"""Own contracts: what an operator's overlay has for this process to record.

Tables that it adds are lanes of frames, written by `run.record`; numbers that it adds to ``steps`` are part of a wider
slot. The overlay's files go into meta.frames, since who seals the stream may not have the folder.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ranklake.capture.common.layouts import OWN_WIDTH
from ranklake.capture.common.settings import CaptureSettings
from ranklake.capture.series.policies import Warn
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.contracts.model import NUMBERS, Contract
from ranklake.lake.contracts.overlay import Overlay

STEPS: Final = "steps"
_WHOLE: Final = frozenset({"int32", "int64"})


@dataclass(frozen=True)
class OwnContracts:
    """What one process records besides what every process does.

    Attributes
    ----------
    tables
        Contracts of the tables that an overlay adds.
    step_columns
        Numbers that it adds to ``steps``, by name: whether they are whole.
    frame
        What goes into meta.frames; None where nothing is added.
    """

    tables: Mapping[str, Contract] = field(default_factory=dict)
    step_columns: Mapping[str, bool] = field(default_factory=dict)
    frame: Mapping[str, Any] | None = None


NO_CONTRACTS: Final = OwnContracts()


def own_contracts(settings: CaptureSettings, warn: Warn) -> OwnContracts:
    """Return what the configured overlay adds; where it cannot be used that is told, and nothing is added."""
    if not settings.contracts_overlay:
        return NO_CONTRACTS
    try:
        overlay = Overlay.read(Path(settings.contracts_overlay))
        every = load_contracts(overlay)
        packaged = frozenset(load_contracts())
    except Exception as error:  # noqa: BLE001 - users hand over anything
        warn("contracts_overlay tables", f"tables and columns of contracts_overlay are not recorded here: {error}")
        return NO_CONTRACTS
    tables = {name: every[name] for name in overlay.tables if name not in packaged and every[name].envelope}
    files = {f"{name}.yaml": overlay.files[f"{name}.yaml"] for name in (*tables, STEPS) if name in overlay.tables}
    return OwnContracts(
        tables,
        _step_columns(every[STEPS], warn),
        {"k": "overlay", "f": files} if files else None,
    )


def _step_columns(steps: Contract, warn: Warn) -> dict[str, bool]:
    found: dict[str, bool] = {}
    for column in steps.own_columns:
        if column.type not in NUMBERS - {"decimal"} | {"bool"}:
            warn(f"steps.{column.name}", f"column {column.name!r} of steps is {column.type}: run.step takes numbers")
        elif len(found) == OWN_WIDTH:
            what = f"column {column.name!r} of steps is beyond the {OWN_WIDTH} that run.step takes"
            warn("steps columns", f"{what}: its values become metrics, and so do those of the columns after it")
        else:
            found[column.name] = column.type in _WHOLE
    return found
