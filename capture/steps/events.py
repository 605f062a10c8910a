"""Events: rows of ``events``, at the running step."""

import contextlib
from typing import Any, Final

from ranklake.capture.common.layouts import ABSENT
from ranklake.capture.common.monotonic import now
from ranklake.capture.common.values import integer, json_text, number, redacted_text, text, to_json
from ranklake.capture.lanes.series import check_name
from ranklake.capture.lanes.sink import Sink
from ranklake.capture.steps.progress import Progress
from ranklake.redaction.redact import redact_names

_SEVERITIES: Final = frozenset({"info", "warning", "error"})
_SEVERITY_OF: Final = {
    "warn": "warning",
    **dict.fromkeys(("err", "critical", "fatal", "emergency", "alert", "catastrophe", "catastrophic"), "error"),
}
"""Severities of other tools, and ours for them."""


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
                "event": check_name(name)[:256],
                "severity": self._severity(severity),
                "message": None if message is None else redacted_text(message, 8192),
                "step": None if at == ABSENT else at,
                "duration_ns": None if duration_s is None else max(0, round(number(duration_s) * 1e9)),
                "attributes": json_text(redact_names(to_json(attributes))),
            }
            sink.record("events", columns, moment)

    def _severity(self, given: object) -> str:
        """Return a severity that the contract has; of another, the nearest, and it is reported."""
        if isinstance(given, str) and given in _SEVERITIES:
            return given
        word = text(given, 80)
        severity = _SEVERITY_OF.get(word.lower(), "info")
        known = "info, warning or error"
        self._sink.misuse(f"severity {word}", f"severity {word!r} is not {known}; it is recorded as {severity!r}")
        return severity


_NAME: Final = "_ranklake_step"
_RECORDED_BY: Final = "_ranklake_recorded_by"
_DEEPEST: Final = 8


def note_step(error: BaseException, step: int) -> None:
    """Say on an exception that it ended a step. Of steps within each other, the inner one stays."""
    with contextlib.suppress(Exception):  # an exception whose class allows no attributes
        if noted_step(error) is None:
            setattr(error, _NAME, step)


def noted_step(error: BaseException) -> int | None:
    """Return the number of the step that an exception, or what it was raised from, ended; None if there is none."""
    current: BaseException | None = error
    for _ in range(_DEEPEST):
        if current is None:
            break
        step = getattr(current, _NAME, None)
        if isinstance(step, int):
            return step
        current = current.__cause__ or current.__context__
    return None


def is_news(error: BaseException, recorder: object) -> bool:
    """Whether a run has not recorded an exception yet; marks the exception as recorded by it.

    A framework reports an exception, and so do the block that it leaves and the interpreter: it is one failure.
    """
    recorders: list[int] = getattr(error, _RECORDED_BY, [])
    if id(recorder) in recorders:
        return False
    with contextlib.suppress(Exception):
        setattr(error, _RECORDED_BY, [*recorders, id(recorder)])
    return True
