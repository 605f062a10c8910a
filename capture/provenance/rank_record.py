"""Rank record: the row of ``ranks``, by which hosts and software of the ranks of an attempt can be compared.

    settled       it is known which rank this is
    each second   until the framework has been imported, at the latest after `PATIENCE_S`: the row is written, once
    close         it is written now, if it is not yet

The sealer's thread looks, and training waits for nothing. A run of one rank has all of it in its row of ``runs``.
"""

import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import ranklake
from ranklake.capture.common.values import json_text
from ranklake.capture.lanes.sink import Sink
from ranklake.capture.provenance.determinism import framework_facts
from ranklake.capture.provenance.environment import (
    container,
    lockfile_sha256,
    os_description,
    packages,
    packages_sha256,
)
from ranklake.capture.provenance.launcher import Launch
from ranklake.capture.provenance.provenance import cpu_model, device_columns, framework_columns
from ranklake.capture.provenance.repository import code_folder, upwards

Facts = dict[str, Any]

PATIENCE_S: Final = 60.0
"""How long a framework may take to be imported; a rank without one has its row then."""
_DEVICE: Final = ("device_type", "device_name", "driver_version")
_FRAMEWORK: Final = ("framework", "framework_version", "cuda_version", "cudnn_version", "nccl_version")
_NOT_IMPORTED: Final = "no framework was imported"


class RankRecord:
    """The row of this process's rank; nothing is raised."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._is_written = False
        self._writing = threading.Lock()
        self._pid, self._begun = os.getpid(), time.monotonic()

    def look(self, launch: Launch) -> None:
        """Write the row if what it says is there by now."""
        if not self._is_written and (is_imported() or time.monotonic() - self._begun > PATIENCE_S):
            self.write(launch)

    def write(self, launch: Launch) -> None:
        """Write the row, if there are other ranks and it is not written."""
        if launch.world_size < 2 or os.getpid() != self._pid:  # noqa: PLR2004 - nobody to compare with
            return
        with self._writing:  # the sealer's thread looks while the run closes
            if self._is_written:
                return
            self._is_written = True
        with self._sink.recording("ranks"):
            self._sink.record("ranks", rank_row(launch))


def is_imported() -> bool:
    """Say whether a framework has been imported to its end; before, it does not say with what it was built."""
    name = framework_columns().get("framework")
    spec = getattr(sys.modules.get(name), "__spec__", None) if name else None
    return name is not None and not getattr(spec, "_initializing", False)  # importlib's own mark


def rank_row(launch: Launch) -> Facts:
    """Return the columns of a ``ranks`` row that are known; ``unavailable`` says why the others are not."""
    why: dict[str, str] = {}

    def found(columns: tuple[str, ...], look: Callable[[], Facts], missing: str = "not found") -> Facts:
        try:
            facts = {column: value for column, value in look().items() if column in columns and value is not None}
        except Exception as error:  # noqa: BLE001 - whatever the host has in store must not stop a run
            facts, missing = {}, type(error).__name__
        why.update({column: missing for column in columns if column not in facts})
        return facts

    image, no_image = container(os.environ)
    without = _NOT_IMPORTED if not framework_columns() else "the framework does not say"
    row = {
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "local_rank": launch.local_rank,
        "python_version": platform.python_version(),
        "ranklake_version": ranklake.__version__,
        **found(_DEVICE, lambda: device_columns(launch) or {}),
        **found(_FRAMEWORK, lambda: framework_columns() | framework_facts(), without),
        **found(("os_description",), lambda: {"os_description": os_description()}),
        **found(("cpu_model",), lambda: {"cpu_model": cpu_model()}),
        **found(("packages_sha256",), lambda: {"packages_sha256": packages_sha256(packages(tuple(sys.path)))}),
        **found(("lockfile_sha256",), lambda: {"lockfile_sha256": lockfile_sha256(upwards(code_folder()))}),
        **found(("container_image", "container_image_digest"), lambda: dict(image), no_image),
    }
    return {**row, "unavailable": json_text(why or None)}
