"""NVML tape: calls of the driver's library and their answers, as JSON, tick by tick.

    {"about": …, "recorded": true, "driver": …, "when": …}              the first line: what it is, and where it is from
    {"tick": 0, "call": "nvmlDeviceGetName", "args": [{"handle": "h0"}], "answer": "NVIDIA H100 …"}
    {"tick": 0, "call": "nvmlDeviceGetFanSpeed", "args": [{"handle": "h0"}], "error": 3}

Structures are ``{"fields": {…}}``, unions with all their members; what the library points to is ``{"handle": …}``.
"""

import ctypes
import json
import threading
from typing import Any, Final, TextIO

from ranklake.capture.samplers.nvml import Nvml

_SIMPLE: Final[Any] = ctypes.c_uint.__mro__[1]
_POINTER: Final[Any] = ctypes.POINTER(ctypes.c_uint).__mro__[1]
"""What all of ctypes' numbers, and all of its pointers, are; it has no public names for them."""
_PLAIN: Final = (bool, int, float, str, type(None))


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

    def __init__(self, nvml: Nvml, out: TextIO) -> None:
        self._nvml, self._out = nvml, out
        self._handles: dict[int, str] = {}
        self._lock = threading.Lock()  # XIDs are waited for in another thread
        self.tick = 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the module has
        found = getattr(self._nvml, name)
        if not name.startswith("nvml") or not callable(found):
            return found

        def called(*args: Any, **named: Any) -> Any:  # noqa: ANN401 - the library's
            said = [self._plain(one) for one in (*args, *named.values())]
            try:
                answer = found(*args, **named)
            except self._nvml.NVMLError as error:
                self._write({"call": name, "args": said, "error": error.value})
                raise
            self._write({"call": name, "args": said, "answer": self._plain(answer)})
            return answer

        return called

    def _write(self, line: dict[str, Any]) -> None:
        with self._lock:
            self._out.write(json.dumps({"tick": self.tick, **line}) + "\n")

    def _plain(self, found: Any) -> Any:  # noqa: ANN401, PLR0911 - the library's, and one return a kind
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


def asked_for(arguments: list[Any]) -> str:
    """Return what a call was asked, to find its answer by: of GPM's, the numbers of the metrics alone."""
    return json.dumps([{"gpm": [row[0] for row in one["gpm"]]} if _is_gpm(one) else one for one in arguments])


def _is_gpm(one: Any) -> bool:  # noqa: ANN401 - JSON
    return isinstance(one, dict) and "gpm" in one
