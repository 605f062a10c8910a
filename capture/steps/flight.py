"""Flight: save torch's Flight Recorder, which lists each rank's begun and ended collectives, on a hang or failure.

    TORCH_FR_BUFFER_SIZE=2000 torchrun …        number of collectives that torch keeps
    run.flight_recorder(timeout_s=300)           a thread checks whether steps and phases still begin

A dump is a JSON file, recorded as an artifact of kind ``dump``, with an event that has the reason and the last
collective. Dumps of this rank by NCCL's watchdog become artifacts, too.
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ranklake.capture.common.run_like import RunLike
from ranklake.capture.lanes.sink import Sink
from ranklake.capture.steps.events import Events
from ranklake.capture.steps.progress import Progress

_NCCL_FILES: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


class FlightRecorder:
    """Saves dumps of one run.

    Parameters
    ----------
    keep
        Records a file as an artifact: `ranklake.capture.assets.artifacts.Artifacts.record_file`.
    timeout_s
        Training counts as hung if no step or phase begins for this time, after the first one.
    """

    def __init__(
        self,
        run: RunLike,
        sink: Sink,
        events: Events,
        progress: Progress,
        keep: Callable[..., None],
        *,
        folder: Path,
        timeout_s: float,
    ) -> None:
        self._run, self._sink, self._events, self._progress, self._keep = run, sink, events, progress, keep
        self._folder, self._timeout_s = folder, timeout_s
        self._stop = threading.Event()
        self._count = 0
        self._recorded_paths: set[Path] = set()
        self._thread = threading.Thread(target=self._watch, name="ranklake-flight", daemon=True)
        self._thread.start()

    def dump(self, reason: str, *, severity: str = "info") -> Path | None:
        """Save the recorder's entries now and return the file's path; None if it has none, which an event reports.

        Parameters
        ----------
        reason
            Message of the event.
        severity
            Severity of the event; ``error`` means that training hangs, and becomes an incident.
        """
        run = self._run
        try:
            self._keep_files()
            raw = _trace()
            if raw is None:
                self._events.add(
                    "flight_recorder", severity="warning", message=f"{reason}: nothing recorded, {_reason()}"
                )
                return None
            self._folder.mkdir(parents=True, exist_ok=True)
            name = f"{run.name}~a{run.attempt}~r{run.rank}~flight{self._count}.json"
            self._count += 1
            scratch = self._folder / f"{name}.tmp"
            scratch.write_bytes(raw)
            path = scratch.rename(self._folder / name)
            self._keep(path, "dump", atomic=True)
            self._events.add("flight_recorder", severity=severity, message=reason, dump=name, **last_collective(raw))
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._sink.trouble("dumping the flight recorder", error)
            return None
        return path

    def close(self) -> None:
        """Stop the thread, and record dumps that NCCL has written."""
        self._stop.set()
        self._thread.join(5.0)
        self._keep_files()

    def _watch(self) -> None:
        previous, is_hung = self._progress.begun(), False
        while not self._stop.wait(self._timeout_s):
            begun = self._progress.begun()
            if begun == previous and begun and not is_hung:
                self.dump(f"no step or phase began for {self._timeout_s:g} s", severity="error")
            is_hung, previous = begun == previous, self._progress.begun()

    def _keep_files(self) -> None:
        for variable in _NCCL_FILES:
            prefix = os.environ.get(variable)
            path = Path(f"{prefix}{self._run.rank}") if prefix else None
            if path is not None and path not in self._recorded_paths and path.is_file():
                self._recorded_paths.add(path)
                self._keep(path, "dump")


def _trace() -> bytes | None:
    """Return the recorder's entries as JSON; None without entries."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    torch: Any = sys.modules["torch"]
    c10d = torch._C._distributed_c10d  # noqa: SLF001 - there is no public one
    dump = "_dump_nccl_trace_json" if distributed.get_backend() == "nccl" else "_dump_fr_trace_json"
    raw: bytes = getattr(c10d, dump)()
    return raw if b'"entries"' in raw else None


def last_collective(raw: bytes) -> dict[str, Any]:
    """Return the last collective of a dump: its name, number, group, sizes, and whether it has ended.

    All ranks of a group number its collectives in the same way. Ranks that wait in a collective have begun it; a
    missing rank has not.
    """
    entries = [item for item in json.loads(raw)["entries"] if not item.get("is_p2p")]
    if not entries:
        return {}
    last = entries[-1]
    return {
        "collective": last["profiling_name"],
        "collective_number": last["collective_seq_id"],
        "group": " ".join(last["process_group"]),
        "sizes": last["input_sizes"],
        "ended": bool(last["retired"]),
    }


def _reason() -> str:
    if "torch.distributed" not in sys.modules:
        return "torch.distributed is not imported"
    return "set TORCH_FR_BUFFER_SIZE before training starts"
