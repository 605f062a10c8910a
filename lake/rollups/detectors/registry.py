"""The list of all detectors."""

from typing import Final

from ranklake.detection.declaration import Detector
from ranklake.lake.rollups.detectors import (
    devices,
    hangs,
    hosts,
    loss,
    metrics,
    ranks,
    rates,
    saves,
    silences,
    slowdowns,
    speed,
)

RUN_DETECTORS: Final[tuple[Detector, ...]] = (
    *loss.DETECTORS,
    *rates.DETECTORS,
    *speed.DETECTORS,
    *saves.DETECTORS,
    *ranks.DETECTORS,
    *slowdowns.DETECTORS,
    *silences.DETECTORS,
    *hangs.DETECTORS,
    *metrics.DETECTORS,
)
"""Detectors of runs; their findings are in ``run_findings``."""
NODE_DETECTORS: Final[tuple[Detector, ...]] = (*devices.DETECTORS, *hosts.DETECTORS)
"""Detectors of devices and hosts; their findings are in ``node_findings``."""
DETECTORS: Final = (*RUN_DETECTORS, *NODE_DETECTORS)
