"""Findings: what one look came to, and what to do about it."""

from dataclasses import dataclass, replace
from typing import Final, Literal

State = Literal["ok", "warning", "failed", "skipped"]
WRONG: Final = frozenset({"warning", "failed"})


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the doctor's.

    Attributes
    ----------
    state
        ok; warning (it works, and will not for long, or not for everybody); failed; skipped (not configured, or not
        known).
    what
        What was found, in a clause.
    remedy
        What to do about it; empty where there is nothing to do.
    check
        The probe that it comes from; filled in by `ranklake.doctor.examination`.
    is_alerted
        Whether each round of alerts finds it, too, and sends a message.
    is_known
        False where the probe did not answer in time, or has a bug: nobody knows what it would have found.
    """

    state: State
    what: str
    remedy: str = ""
    check: str = ""
    is_alerted: bool = False
    is_known: bool = True

    @property
    def is_wrong(self) -> bool:
        """Whether somebody should do something."""
        return self.state in WRONG


def ok(what: str) -> Finding:
    """Return a finding that all is well."""
    return Finding("ok", what)


def warning(what: str, remedy: str) -> Finding:
    """Return a finding of what works and should be fixed all the same."""
    return Finding("warning", what, remedy)


def failed(what: str, remedy: str) -> Finding:
    """Return a finding of what does not work."""
    return Finding("failed", what, remedy)


def skipped(what: str, remedy: str = "") -> Finding:
    """Return a finding that there was nothing to look at."""
    return Finding("skipped", what, remedy)


def alerted(finding: Finding) -> Finding:
    """Return a finding that each round of alerts makes, too."""
    return replace(finding, is_alerted=True)


def not_known(what: str, remedy: str = "") -> Finding:
    """Return a finding of what could not be found out: nobody may take that for ok."""
    return Finding("skipped", f"not known: {what}", remedy)
