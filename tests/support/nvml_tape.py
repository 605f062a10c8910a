"""NVML tape: calls of the driver's library and their answers, as JSON, tick by tick.

    python tests/support/nvml_tape.py --seconds 10 --out FILE     records a real driver's answers to the sampler

    {"about": …, "recorded": true, "driver": …, "when": …}              the first line: what it is, and where it is from
    {"tick": 0, "call": "nvmlDeviceGetName", "args": [{"handle": "h0"}], "answer": "NVIDIA H100 …"}
    {"tick": 0, "call": "nvmlDeviceGetFanSpeed", "args": [{"handle": "h0"}], "error": 3}

Structures are ``{"fields": {…}}``, unions with all their members; what the library points to is ``{"handle": …}``.
"""

import argparse
import ctypes
import json
import platform
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from ranklake.capture.samplers.gpu import GpuSampler
from ranklake.capture.samplers.gpu_parts import error_text, load_nvml, text

_SIMPLE = ctypes.c_uint.__mro__[1]
_POINTER = ctypes.POINTER(ctypes.c_uint).__mro__[1]
"""What all of ctypes' numbers, and all of its pointers, are; it has no public names for them."""
_PLAIN = (bool, int, float, str, type(None))


class Tape:
    """Stands for the library's module, passes every call on to it, and writes down what it answers.

    Parameters
    ----------
    nvml
        The module.
    out
        Gets a line for each call; the caller writes the first line of all.

    Attributes
    ----------
    tick
        The number that calls are written down under.
    """

    def __init__(self, nvml, out):
        self._nvml, self._out = nvml, out
        self._handles = {}
        self._lock = threading.Lock()  # XIDs are waited for in another thread
        self.tick = 0

    def __getattr__(self, name):
        found = getattr(self._nvml, name)
        if not name.startswith("nvml") or not callable(found):
            return found

        def called(*args, **named):
            said = [self._plain(one) for one in (*args, *named.values())]
            try:
                answer = found(*args, **named)
            except self._nvml.NVMLError as error:
                self._write({"call": name, "args": said, "error": error.value})
                raise
            self._write({"call": name, "args": said, "answer": self._plain(answer)})
            return answer

        return called

    def _write(self, line):
        with self._lock:
            self._out.write(json.dumps({"tick": self.tick, **line}) + "\n")

    def _plain(self, found):  # noqa: PLR0911 - one return a kind
        nvml = self._nvml
        if isinstance(found, _PLAIN):
            return found
        if isinstance(found, bytes):
            return found.decode("utf-8", "replace")
        if isinstance(found, nvml.c_nvmlGpmMetricsGet_t):
            asked = [found.metrics[at] for at in range(found.numMetrics)]
            return {"gpm": [[one.metricId, one.nvmlReturn, one.value] for one in asked]}
        if isinstance(found, list | tuple | ctypes.Array):
            return [self._plain(one) for one in found]
        if isinstance(found, ctypes.Structure | ctypes.Union):
            return {"fields": {field[0]: self._plain(getattr(found, field[0])) for field in found._fields_}}
        if isinstance(found, _SIMPLE):
            return found.value
        if isinstance(found, _POINTER):
            address = ctypes.cast(found, ctypes.c_void_p).value or 0
            return {"handle": self._handles.setdefault(address, f"h{len(self._handles)}")}
        return {"fields": {name: self._plain(value) for name, value in vars(found).items()}}


def asked_for(arguments):
    """Return what a call was asked, to find its answer by: of GPM's, the numbers of the metrics alone."""
    return json.dumps([{"gpm": [row[0] for row in one["gpm"]]} if _is_gpm(one) else one for one in arguments])


def _is_gpm(one):
    return isinstance(one, dict) and "gpm" in one


class NoDeviceError(Exception):
    """There is no device to record."""


def record(nvml, seconds, out):
    """Sample for so many seconds, once each, and write the tape; return how many calls it holds.

    Host name, serial numbers and UUIDs are recorded as they are: look at the file before it is given away.

    Raises
    ------
    NoDeviceError
        NVML cannot be initialised. No file is left.
    OSError
        The file cannot be written.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NoDeviceError(f"NVML: nothing can be recorded: {error_text(nvml, error.value)}") from error
    about = {
        "about": "NVML as nvidia-ml-py has it, recorded on a device by tests/support/nvml_tape.py",
        "recorded": True,
        "when": datetime.now(UTC).isoformat("T", "seconds"),
        "platform": platform.platform(),
        "driver": text(nvml.nvmlSystemGetDriverVersion()),
        "devices": [
            text(nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(at))) for at in range(nvml.nvmlDeviceGetCount())
        ],
    }
    with out.open("w", encoding="utf-8") as file:
        file.write(json.dumps(about) + "\n")
        tape = Tape(nvml, file)
        sampler = GpuSampler(tape, dict)
        began = time.monotonic()
        for tick in range(seconds):
            tape.tick = tick
            list(sampler.sample(time.monotonic_ns()))
            time.sleep(max(0.0, began + tick + 1 - time.monotonic()))
        sampler.close()
        sampler.join()
    return len(out.read_text(encoding="utf-8").splitlines()) - 1


def main():
    """Read the command line and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    try:
        calls = record(load_nvml(), chosen.seconds, chosen.out)
    except NoDeviceError as error:
        parser.exit(1, f"{error}\n")
    parser.exit(0, f"{calls} calls in {chosen.out}\n")


if __name__ == "__main__":
    main()
