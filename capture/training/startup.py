"""Startup: the time from a process's start to the end of its first step, by part, as spans ``init/<part>``.

    init/before_capture   from the process's start to the call of `start`: interpreter, imports, the script's own work
    init/capture          the call of `start`
    init/<part>           after the call: what the thread that called `start` does, sampled by another thread

A sample is the part (`part_of`) that the thread is in. The time since the previous sample counts for that part.
Consecutive samples of the same part become one span of stream ``sampled``. Sampling ends with the first step and costs
nothing afterwards.
"""

import builtins
import itertools
import os
import sys
import threading
import time
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Final

from ranklake.capture.common.layouts import ABSENT
from ranklake.capture.common.monotonic import now
from ranklake.capture.spool.owner import start_ticks
from ranklake.capture.steps.progress import Progress
from ranklake.capture.steps.spans import Spans

PREFIX: Final = "init/"
SCRIPT: Final = "script"
"""Part of all other code, after `_MOST_NAMES` functions of the user have become parts."""

_SECOND_NS: Final = 10**9
_LONGEST_NS: Final = 23 * 3600 * _SECOND_NS
_LEAST_PAUSE_S: Final = 0.02
_MOST_PAUSE_S: Final = 0.25
_PAUSES_PER_START: Final = 200
"""A pause is the length of the start so far, divided by this."""
_SPANS_PER_DOUBLING: Final = 100
_LONGEST_SPAN_NS: Final = 10 * _SECOND_NS
_GIVE_UP_NS: Final = 3600 * _SECOND_NS
_MOST_NAMES: Final = 16
_FIRST_ID: Final = 1 << 48
"""First span id of a start. Ids from `Progress` would count as progress of training and hide a start that hangs."""

_COLLECTIVES: Final = "/torch/distributed/distributed_c10d.py"
_PARTS: Final[tuple[tuple[str, tuple[str, ...], str], ...]] = (
    ("<frozen importlib", (), "imports"),
    ("/torch/_dynamo/convert_frame.py", (), "compile"),
    ("/torch/_dynamo/backends/", (), "compile"),
    ("/torch/_inductor/graph.py", (), "compile"),
    ("/torch/_inductor/scheduler.py", (), "compile"),
    ("/torch/_inductor/codegen/", (), "compile"),
    ("/torch/_inductor/codecache.py", (), "compile"),
    ("/torch/_inductor/async_compile.py", (), "compile"),
    ("/torch/utils/cpp_extension.py", (), "compile"),
    ("/triton/compiler/", (), "compile"),
    ("/triton/runtime/autotuner.py", (), "compile"),
    ("/jax/_src/compiler.py", (), "compile"),
    ("/torch/utils/data/", (), "data"),
    ("/datasets/", ("load_dataset", "map", "filter", "load_from_disk", "_prepare_split", "__iter__"), "data"),
    ("/torch/distributed/checkpoint/", (), "checkpoint"),
    ("/torch/serialization.py", (), "checkpoint"),
    ("/safetensors/", (), "checkpoint"),
    ("/orbax/checkpoint/", (), "checkpoint"),
    ("/huggingface_hub/file_download.py", (), "download"),
    ("/huggingface_hub/_snapshot_download.py", (), "download"),
    ("/torch/hub.py", (), "download"),
    ("/torch/distributed/rendezvous.py", (), "distributed"),
    ("/torch/distributed/device_mesh.py", (), "distributed"),
    ("/torch/distributed/utils.py", ("_verify_param_shape_across_processes", "_sync_module_states"), "distributed"),
    ("/torch/cuda/__init__.py", ("_lazy_init", "set_device", "init"), "device"),
    ("/torch/nn/init.py", (), "model"),
    ("/torch/nn/modules/", ("__init__", "reset_parameters", "_apply", "load_state_dict"), "model"),
    ("/torch/nn/parallel/distributed.py", ("__init__",), "model"),
    ("/torch/distributed/fsdp/", ("__init__", "fully_shard"), "model"),
    ("/transformers/modeling_utils.py", ("from_pretrained", "_load_pretrained_model"), "model"),
    ("/deepspeed/runtime/engine.py", ("__init__",), "model"),
    (_COLLECTIVES, ("init_process_group", "_new_process_group_helper", "new_group", "barrier"), "distributed"),
)
"""A fragment of a file's path, function names (empty: all functions), and the part that they belong to."""

_first_run_pid: int = 0
"""Process whose first run has started: only the first run of a process records the time before `start`."""


class Startup:
    """Records the parts of a start, from the calling thread's stack, until its first step has ended.

    Parameters
    ----------
    entered_ns
        When `ranklake.capture.start` was called, on the monotonic clock.
    """

    def __init__(self, spans: Spans, progress: Progress, entered_ns: int) -> None:
        self._spans, self._progress = spans, progress
        self._ids = itertools.count(_FIRST_ID)
        self._thread_id = threading.get_ident()
        self._stopped = threading.Event()
        self._names: set[str] = set()
        self._entered_ns = entered_ns
        self._thread = threading.Thread(target=self._watch, name="ranklake-startup", daemon=True)

    def begin(self) -> None:
        """Record the time before this call and start sampling. Raises `RuntimeError` if no thread can be started."""
        started_ns = process_start_ns()
        if started_ns is not None:
            self._write("before_capture", started_ns, self._entered_ns, None)
        self._first_ns = self._entered_ns if started_ns is None else started_ns
        self._sampling_from_ns = now()
        self._write("capture", self._entered_ns, self._sampling_from_ns, None)
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling; wait up to a second for the thread, which writes the last span."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def _watch(self) -> None:
        with self._spans.sink.guarded("watching the start"):
            self._sample_all()

    def _sample_all(self) -> None:
        part, begin_ns, end_ns, spans = "", self._sampling_from_ns, self._sampling_from_ns, 0
        while not self._is_over(end_ns):
            self._stopped.wait(self._pause_s(end_ns, spans))
            sample_ns, current_part = now(), self._part_now()
            if current_part != part or end_ns - begin_ns > _LONGEST_SPAN_NS:
                if part:
                    self._write(part, begin_ns, end_ns, "sampled")
                    spans += 1
                part, begin_ns = current_part, end_ns
            end_ns = sample_ns
        if part:
            self._write(part, begin_ns, end_ns, "sampled")

    def _pause_s(self, end_ns: int, spans: int) -> float:
        """Seconds to the next sample: a two-hundredth of the start so far; longer if parts change often."""
        share_s = (end_ns - self._first_ns) / _SECOND_NS / _PAUSES_PER_START
        return max(_LEAST_PAUSE_S * 2.0 ** (spans // _SPANS_PER_DOUBLING), min(share_s, _MOST_PAUSE_S))

    def _is_over(self, end_ns: int) -> bool:
        """Whether the first step or the run has ended, or the start has taken longer than `_GIVE_UP_NS`."""
        progress = self._progress
        current = progress.current
        has_stepped = progress.latest != ABSENT and (current is None or current.number != progress.first)
        return has_stepped or self._stopped.is_set() or end_ns - self._first_ns > _GIVE_UP_NS

    def _part_now(self) -> str:
        frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - documented for looking at other threads
        part = part_of(frame) if frame is not None else ""
        is_named = ":" not in part and part != SCRIPT
        if not is_named and self._progress.current is not None:
            return ""  # the work of the running step
        if not is_named and part not in self._names:
            if len(self._names) >= _MOST_NAMES:
                return SCRIPT
            self._names.add(part)
        return part

    def _write(self, part: str, begin_ns: int, end_ns: int, stream: str | None) -> None:
        spans = self._spans
        name = spans.number(PREFIX + part, "other", stream=stream)
        if name is not None and end_ns > begin_ns:
            spans.put(begin_ns, end_ns - begin_ns, ABSENT, next(self._ids), ABSENT, ABSENT, -1, 0, name)


def process_start_ns() -> int | None:
    """Return when this process started, on the monotonic clock; None if the run did not start with the process.

    None in a notebook, in a pool's worker process or thread, for the second run of a process, and if the system does
    not report the start.
    """
    global _first_run_pid  # noqa: PLW0603 - state of the process
    pid = os.getpid()
    if _first_run_pid == pid:
        return None
    _first_run_pid = pid
    main = str(getattr(sys.modules.get("__main__"), "__file__", None) or "")
    is_interactive = hasattr(sys, "ps1") or hasattr(builtins, "__IPYTHON__")
    if is_interactive or "/ray/_private/" in main or threading.current_thread() is not threading.main_thread():
        return None
    ticks = start_ticks(pid)
    if not ticks or not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * _SECOND_NS // os.sysconf("SC_CLK_TCK")
    return now() - age_ns if 0 <= age_ns <= _LONGEST_NS else None


def part_of(frame: FrameType | None) -> str:
    """Return the part of a start that a thread is in, by its innermost frame with an entry in `_PARTS`.

    Without such a frame the part is ``distributed`` for a collective. Otherwise it is the innermost function outside
    the standard library and installed packages, such as ``data.py:Corpus.tokenize``; `SCRIPT` if there is none.
    """
    own, is_collective = "", False
    while frame is not None:
        code = frame.f_code
        part = _part_of_code(code.co_filename, code.co_name)
        if part:
            return part
        is_collective = is_collective or _COLLECTIVES in code.co_filename
        if not own and _is_own(code.co_filename):
            own = f"{code.co_filename.rpartition('/')[2]}:{code.co_qualname}"[:200]
        frame = frame.f_back
    return "distributed" if is_collective else own or SCRIPT


@lru_cache(maxsize=4096)
def _part_of_code(file: str, function: str) -> str:
    for fragment, functions, part in _PARTS:
        if fragment in file and (not functions or function in functions):
            return part
    return ""


@lru_cache(maxsize=4096)
def _is_own(file: str) -> bool:
    """Whether a file belongs to neither the standard library nor an installed package nor ranklake."""
    libraries = (str(Path(os.__file__).parent), str(Path(__file__).parents[2]), "<")
    return not file.startswith(libraries) and "/site-packages/" not in file and "/dist-packages/" not in file
