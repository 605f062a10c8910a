"""Events: rows of ``events``, at the running step."""

from typing import Any, Final

from ranklake.capture.common.layouts import ABSENT
from ranklake.capture.common.monotonic import now
from ranklake.capture.common.values import integer, json_text, number, plain, redacted, text
from ranklake.capture.lanes.sink import Sink
from ranklake.capture.series.series import checked
from ranklake.capture.steps.progress import Progress
from ranklake.redaction.redact import redact_names

_SEVERITIES: Final = frozenset({"info", "warning", "error"})
_SEVERITY_OF: Final = {
    "warn": "warning",
    **dict.fromkeys(("err", "critical", "fatal", "emergency", "alert", "catastrophe", "catastrophic"), "error"),
}
"""What others say for them."""


class Events:
    """The events of one run."""

    def __init__(self, sink: Sink, progress: Progress) -> None:
        self._sink, self._progress = sink, progress

    def add(
        self,
        /,
        name: object = "",
        *excess: object,
        message: object = None,
        step: object = None,
        severity: object = "info",
        duration_s: object = None,
        **attributes: object,
    ) -> None:
        """Record that something happened.

        Parameters
        ----------
        name
            One of the contract's (``checkpoint``, ``failure``, ``preemption``, …) or your own.
        message
            One line for a person to read.
        step
            By default the running step, if there is one.
        severity
            ``info``, ``warning`` or ``error``.
        duration_s
            How long it took, if it took time; it then ended now.
        attributes
            What else is known, kept as JSON. What looks like a credential is redacted, here and in the message.
        """
        sink = self._sink
        if sink.is_idle:
            sink.miss("events")
            return
        moment = now()
        with sink.recording("events"):
            frame = self._progress.stack.top
            if step is None:
                at = ABSENT if frame is None or frame.step is None else frame.step.number
            else:
                at = integer(step)
            if excess:
                attributes["excess"] = excess
            columns: dict[str, Any] = {
                "event": checked(name)[:256],
                "severity": self._severity(severity),
                "message": None if message is None else redacted(message, 8192),
                "step": None if at == ABSENT else at,
                "duration_ns": None if duration_s is None else max(0, round(number(duration_s) * 1e9)),
                "attributes": json_text(redact_names(plain(attributes))),
            }
            sink.record("events", columns, moment)

    def _severity(self, given: object) -> str:
        """Return a severity that the contract has; of another, the nearest, and it is told."""
        if isinstance(given, str) and given in _SEVERITIES:
            return given
        word = text(given, 80)
        severity = _SEVERITY_OF.get(word.lower(), "info")
        known = "info, warning or error"
        self._sink.misuse(f"severity {word}", f"severity {word!r} is not {known}; it is recorded as {severity!r}")
        return severity
