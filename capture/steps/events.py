"""Events: write rows of ``events``, by default for the running step."""

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
"""Severities of other tools, each with the severity that is recorded."""


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
        """Record an event.

        Parameters
        ----------
        name
            A name of the contract (``checkpoint``, ``failure``, ``preemption``, …) or your own.
        message
            One line for a person to read.
        step
            Number of a step; by default the running step, if there is one.
        severity
            ``info``, ``warning`` or ``error``.
        duration_s
            Duration in seconds, if the event took time; it ends now.
        attributes
            Further facts, stored as JSON. Credentials are redacted, also in the message.
        """
        sink = self._sink
        if sink.is_idle:
            sink.miss("events")
            return
        time_ns = now()
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
            sink.record("events", columns, time_ns)

    def _severity(self, value: object) -> str:
        """Return a severity of the contract; for another word, the nearest one, with a warning."""
        if isinstance(value, str) and value in _SEVERITIES:
            return value
        word = text(value, 80)
        severity = _SEVERITY_OF.get(word.lower(), "info")
        problem = f"severity {word!r} is not info, warning or error"
        self._sink.misuse(f"severity {word}", f"{problem}; it is recorded as {severity!r}")
        return severity


_NAME: Final = "_ranklake_step"
_RECORDED_BY: Final = "_ranklake_recorded_by"
_MOST_CAUSES: Final = 8


def note_step(error: BaseException, step: int) -> None:
    """Store in an exception the number of the step that it ended. For nested steps, the inner one is kept."""
    with contextlib.suppress(Exception):  # an exception whose class allows no attributes
        if noted_step(error) is None:
            setattr(error, _NAME, step)


def noted_step(error: BaseException) -> int | None:
    """Return the step that an exception, or one of its causes, ended; None if there is none."""
    current: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if current is None:
            break
        step = getattr(current, _NAME, None)
        if isinstance(step, int):
            return step
        current = current.__cause__ or current.__context__
    return None


def claim_failure(error: BaseException, recorder: object) -> bool:
    """Mark an exception as recorded by a run; return False if the run has recorded it before.

    The framework, the run's block and the interpreter may all report the same exception, which is a single failure.
    """
    recorders: list[int] = getattr(error, _RECORDED_BY, [])
    if id(recorder) in recorders:
        return False
    with contextlib.suppress(Exception):
        setattr(error, _RECORDED_BY, [*recorders, id(recorder)])
    return True
