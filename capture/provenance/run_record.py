"""Run record: writes the row of ``runs``, and completes it later with slow facts; and each rank's row of ``ranks``.

    start    the row is written immediately, with reasons for missing columns
    thread   git, packages, lock file: the row is written again in the same slot
    config   hyperparameters that a framework sets later, unless the row is final
    sealing  facts of modules imported since; then the row is final

Readers take the last frame of a slot. A run that is killed meanwhile keeps the last written row.
"""

import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import ranklake
from ranklake.capture.common.values import json_text
from ranklake.capture.lanes.records import OpenRow, RecordLane
from ranklake.capture.lanes.sink import Sink
from ranklake.capture.provenance.environment import (
    container,
    flags,
    framework_facts,
    generator_states,
    lockfile_sha256,
    os_description,
    packages,
    packages_sha256,
    topology,
)
from ranklake.capture.provenance.launcher import Launch
from ranklake.capture.provenance.provenance import (
    config_columns,
    cpu_model,
    device_columns,
    framework_columns,
    launch_columns,
)
from ranklake.capture.provenance.repository import COLUMNS as GIT_COLUMNS
from ranklake.capture.provenance.repository import Git, code_folder, parent_folders, repository_facts

Facts = dict[str, Any]

LIMIT_S: Final = 150.0
"""Most time that sealing leaves the row open for slow facts."""
GIT_LIMIT_S: Final = 120.0
"""Time limit of each git command: hashing a difference of 2 GB takes most of a minute."""
NO_TIME: Final = "the run was sealed or ended before it was found out"
NO_FRAMEWORK: Final = "torch was not imported"
_FRAMEWORK: Final = ("seed", "deterministic", "cuda_version", "cudnn_version", "nccl_version")
_CUT: Final = "config"
"""May be there in part."""
_SLOW: Final = (*GIT_COLUMNS, "packages", "lockfile_sha256")


class RunRecord:
    """The row of one run, from its start until it is final.

    Parameters
    ----------
    lane
        Lane for rows of ``runs``.
    row
        The columns that `run_row` returned.
    patch_bytes
        Most bytes of a git difference to store.
    mesh
        The user's device mesh, if any.
    parameters
        Hyperparameters chosen by a sweep: the run's config if it has no other when the row becomes final.

    Notes
    -----
    In each version of the row, ``unavailable`` has the reason for each missing column.
    """

    def __init__(
        self, lane: RecordLane, row: Facts, patch_bytes: int, mesh: object = None, parameters: Facts | None = None
    ) -> None:
        self._lane, self._patch_bytes, self._mesh, self._parameters = lane, patch_bytes, mesh, parameters
        self._row = dict(row)
        self._unavailable: dict[str, str] = json.loads(self._row.pop("unavailable", None) or "{}")
        self._unavailable |= dict.fromkeys((*_SLOW, *_FRAMEWORK), NO_TIME)
        self._determinism: Facts = {}
        self._lock = threading.RLock()  # a signal's handler may close the run in the middle of this
        self._done = threading.Event()
        self._final = self._awaits_config = False
        self._deadline = time.monotonic() + LIMIT_S
        self._open: OpenRow | None = None
        self._git = Git(code_folder(), GIT_LIMIT_S)

    def begin(self) -> None:
        """Write the row with the known columns, and start a thread for the slow ones. Never raises."""
        self._guarded("determinism", lambda: self._determinism.update(generator_states()))
        self._look_at_frameworks()
        self._open = self._lane.append_open(time.monotonic_ns(), self._display_row())
        if self._open is None:  # counted as a gap
            self._final = True
            return
        try:
            threading.Thread(target=self._find_out, name="ranklake-facts", daemon=True).start()
        except RuntimeError:  # no thread can be started
            self._done.set()

    def settle(self, patience_s: float, *, last: bool) -> bool:
        """Make the row final if its slow facts are complete or its time is over; return whether it is final.

        Parameters
        ----------
        patience_s
            Most time to wait for slow facts.
        last
            Make the row final in any case.
        """
        done = self._final or self._done.wait(patience_s)
        if (not done or self._awaits_config) and not last and time.monotonic() < self._deadline:
            return False
        with self._lock:
            if not self._final:
                self._look_at_frameworks()
                if self._parameters and "config_sha256" not in self._row:
                    self._add(*config_columns(self._parameters))
                self._write()
                self._final = True
        self._git.stop()
        return True

    def amend(self, launch: Launch) -> bool:
        """Update the row's columns about the launch; return False if the row is final."""
        with self._lock:
            if self._final:
                return False
            self._row |= {column: value for column, value in launch_columns(launch).items() if value is not None}
            self._write()
            return True

    def await_config(self) -> None:
        """Keep the row open until it has hyperparameters, at most `LIMIT_S` from the start."""
        self._awaits_config = "config_sha256" not in self._row

    def configure(self, config: object) -> bool:
        """Add hyperparameters to the row; return False if it is final, or already has some."""
        with self._lock:
            if self._final or "config_sha256" in self._row:
                return False
            self._add(*config_columns(config))
            self._write()
            self._awaits_config = False
            return True

    def leave(self) -> None:
        """Stop writing the row, because another process owns it now."""
        with self._lock:
            self._final = True
        self._git.stop()

    def _find_out(self) -> None:
        try:
            facts = repository_facts(self._git, self._patch_bytes)
            self._add(facts.columns, facts.unavailable)
            self._guarded("packages", lambda: {"packages": json_text(packages(tuple(sys.path)))})
            self._guarded(
                "lockfile_sha256", lambda: {"lockfile_sha256": lockfile_sha256(parent_folders(self._git.folder))}
            )
            with self._lock:
                self._write()
        except Exception as error:  # noqa: BLE001 - whatever the host has in store must not stop a run
            why = f"{type(error).__name__}"
            self._add({}, {column: why for column, was in self._unavailable.items() if was == NO_TIME})
        finally:
            self._done.set()

    def _look_at_frameworks(self) -> None:
        """Add facts of the imported framework; a seed that was set before the start is kept."""
        was_seeded = "seed" in self._row and not self._determinism.get("torch_is_unseeded")
        seed = self._row.get("seed")

        def look() -> Facts:
            facts = framework_facts() | framework_columns()
            return facts | {"seed": seed} if was_seeded else facts

        before = self._unavailable.get("seed")
        self._guarded("seed", look)
        if "seed" in self._row:
            missing = {column for column in _FRAMEWORK if column not in self._row}
            self._unavailable |= dict.fromkeys(missing, "the framework was built without CUDA")
        elif before == NO_TIME:
            self._unavailable |= dict.fromkeys(_FRAMEWORK, NO_FRAMEWORK)
        self._guarded("determinism", lambda: self._determinism.update(flags()))
        self._row["determinism"] = json_text(self._determinism)
        if not any(name.endswith("_size") and name in self._row for name in ("dp_size", "tp_size", "pp_size")):
            self._guarded("dp_size", lambda: topology(self._mesh))

    def _guarded(self, column: str, look: Callable[[], Facts | None]) -> None:
        try:
            facts = look() or {}
        except Exception as error:  # noqa: BLE001 - a foreign library, a file system: neither may stop a run
            self._add({}, {column: type(error).__name__})
        else:
            self._add(facts, {name: "not found" for name, value in facts.items() if value is None})

    def _add(self, columns: Facts, unavailable: dict[str, str]) -> None:
        self._row |= {column: value for column, value in columns.items() if value is not None}
        self._unavailable |= unavailable

    def _display_row(self) -> Facts:
        row = {column: value for column, value in self._row.items() if value is not None}
        missing = {column: why for column, why in self._unavailable.items() if column not in row or column == _CUT}
        return row | {"unavailable": json_text(missing)}

    def _write(self) -> None:
        if self._final or self._open is None:
            return
        if not self._lane.rewrite(self._open, self._display_row()) and "git_patch" in self._row:
            del self._row["git_patch"]
            self._unavailable["git_patch"] = "it found no room"
            self._lane.rewrite(self._open, self._display_row())


PATIENCE_S: Final = 60.0
"""Most time to wait for the import of a framework before a rank's row is written."""
_DEVICE: Final = ("device_type", "device_name", "driver_version")
_RANK_FRAMEWORK: Final = ("framework", "framework_version", "cuda_version", "cudnn_version", "nccl_version")
_NOT_IMPORTED: Final = "no framework was imported"


class RankRecord:
    """Writes the row of ``ranks`` of this process. Never raises."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._is_written = False
        self._writing = threading.Lock()
        self._pid, self._begun = os.getpid(), time.monotonic()

    def look(self, launch: Launch) -> None:
        """Write the row if a framework is imported, or `PATIENCE_S` have passed."""
        if not self._is_written and (is_imported() or time.monotonic() - self._begun > PATIENCE_S):
            self.write(launch)

    def write(self, launch: Launch) -> None:
        """Write the row if there are other ranks, unless it is written."""
        if launch.world_size < 2 or os.getpid() != self._pid:  # noqa: PLR2004 - nobody to compare with
            return
        with self._writing:  # the sealer's thread may call `look` while the run closes
            if self._is_written:
                return
            self._is_written = True
        with self._sink.recording("ranks"):
            self._sink.record("ranks", rank_row(launch))


def is_imported() -> bool:
    """Whether a framework is completely imported; before that, its build facts are missing."""
    name = framework_columns().get("framework")
    spec = getattr(sys.modules.get(name), "__spec__", None) if name else None
    return name is not None and not getattr(spec, "_initializing", False)  # importlib's own mark


def rank_row(launch: Launch) -> Facts:
    """Return the known columns of a row of ``ranks``; ``unavailable`` has the reasons why others are missing."""
    why: dict[str, str] = {}

    def looked_up(columns: tuple[str, ...], look: Callable[[], Facts], missing: str = "not found") -> Facts:
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
        **looked_up(_DEVICE, lambda: device_columns(launch) or {}),
        **looked_up(_RANK_FRAMEWORK, lambda: framework_columns() | framework_facts(), without),
        **looked_up(("os_description",), lambda: {"os_description": os_description()}),
        **looked_up(("cpu_model",), lambda: {"cpu_model": cpu_model()}),
        **looked_up(("packages_sha256",), lambda: {"packages_sha256": packages_sha256(packages(tuple(sys.path)))}),
        **looked_up(("lockfile_sha256",), lambda: {"lockfile_sha256": lockfile_sha256(parent_folders(code_folder()))}),
        **looked_up(("container_image", "container_image_digest"), lambda: dict(image), no_image),
    }
    return {**row, "unavailable": json_text(why or None)}
