"""NVML from a tape: answers the sampler's calls as a device did, or as one would, and fails where it is told to.

The module's constants, classes and errors are those of the real ``pynvml``, which needs no driver to be imported.
"""

import json
import threading
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pynvml
from nvml_tape import asked_for

_NOT_A_CALL = ("nvmlClocks", "nvmlEventType", "nvmlMemory_v2", "nvmlStruct")


class Handle(str):
    """What the library points to; a device, an event set."""

    __slots__ = ()


class Player:
    """Stands for the module ``pynvml``.

    Attributes
    ----------
    header
        The tape's first line.
    tick
        Where the tape is: a call is answered as it was at this tick, else as it was last before.
    failing
        Calls by name, by (name, handle) or (name, index), and the errors, or codes of NVML's, that they raise; ``"*"``
        stands for all calls, and ``("*", handle)`` for all calls about a device.
    asked
        Names of the calls so far, with their handles.
    """

    def __init__(self, tape):
        lines = [json.loads(line) for line in Path(tape).read_text().splitlines()]
        self.header, *calls = lines
        self.tick = 0
        self.failing = {}
        self.asked = []
        self._answers = defaultdict(dict)
        for line in calls:
            self._answers[line["call"], asked_for(line["args"])].setdefault(line["tick"], line)
        self._events = []
        self._event = threading.Condition()

    @property
    def last_tick(self):
        """The tape's last tick."""
        return max(max(ticks) for ticks in self._answers.values())

    def happen(self, handle, code, gpu_instance=0xFFFFFFFF, compute_instance=0xFFFFFFFF):
        """Have the driver report an XID."""
        with self._event:
            self._events.append(
                SimpleNamespace(
                    device=Handle(handle),
                    eventType=pynvml.nvmlEventTypeXidCriticalError,
                    eventData=code,
                    gpuInstanceId=gpu_instance,
                    computeInstanceId=compute_instance,
                )
            )
            self._event.notify_all()

    def answer(self, call, args, value, tick=0):
        """Write an answer onto the tape."""
        self._answers[call, asked_for(args)][tick] = {"answer": value}

    def __getattr__(self, name):
        found = getattr(pynvml, name)
        if not name.startswith("nvml") or name.startswith(_NOT_A_CALL) or not callable(found):
            return found

        def called(*args, **named):
            return self._called(name, [*args, *named.values()])

        return called

    def _called(self, name, args):
        handle = next((str(arg) for arg in args if isinstance(arg, Handle)), "")
        index = next((arg for arg in args if isinstance(arg, int)), "")
        self.asked.append((name, handle))
        for key in (name, (name, handle or index), "*", ("*", handle)):
            if key in self.failing and (key != ("*", "") or handle):
                error = self.failing[key]
                raise error if isinstance(error, Exception) else pynvml.NVMLError(error)
        if name in _OWN:
            return _OWN[name](self, *args)
        plain = [_plain(arg) for arg in args]
        ticks = self._answers.get((name, asked_for(plain)), {})
        known = [tick for tick in ticks if tick <= self.tick]
        if not known:  # a tape of a device that was never asked this
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        line = ticks[max(known)]
        if "error" in line:
            raise pynvml.NVMLError(line["error"])
        return self._filled(args, line["answer"])

    @staticmethod
    def _filled(args, answer):
        if isinstance(answer, dict) and "gpm" in answer:
            for at, (_, code, value) in enumerate(answer["gpm"]):
                args[0].metrics[at].nvmlReturn, args[0].metrics[at].value = code, value
            return args[0]
        return _object(answer)

    def _wait(self, _, timeout_ms):
        with self._event:
            if not self._events and not self._event.wait_for(lambda: self._events, min(timeout_ms, 10) / 1e3):
                raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
            return self._events.pop(0)


_OWN = {
    "nvmlInit": lambda player: None,
    "nvmlEventSetCreate": lambda player: Handle("set"),
    "nvmlDeviceRegisterEvents": lambda player, device, types, events: None,
    "nvmlEventSetWait_v2": Player._wait,
    "nvmlEventSetFree": lambda player, events: None,
    "nvmlGpmSampleAlloc": lambda player: pynvml.c_nvmlGpmSample_t(),
    "nvmlGpmSampleGet": lambda player, device, sample: sample,
    "nvmlGpmMigSampleGet": lambda player, device, instance, sample: sample,
}


def _plain(arg):
    if isinstance(arg, Handle):
        return {"handle": str(arg)}
    if isinstance(arg, pynvml.c_nvmlGpmMetricsGet_t):
        return {"gpm": [[arg.metrics[at].metricId, 0, 0.0] for at in range(arg.numMetrics)]}
    if isinstance(arg, list | tuple):
        return [_plain(one) for one in arg]
    return arg


def _object(answer):
    if isinstance(answer, list):
        return [_object(one) for one in answer]
    if isinstance(answer, dict) and "handle" in answer:
        return Handle(answer["handle"])
    if isinstance(answer, dict):
        return SimpleNamespace(**{name: _object(value) for name, value in answer["fields"].items()})
    return answer
