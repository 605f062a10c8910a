"""Something that needs attention, with its evidence and the next step."""

from dataclasses import dataclass
from typing import Final

ORDER: Final = ("failing", "warning")
"""States of needs, the worst first."""


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that needs attention.

    Attributes
    ----------
    state
        Its severity: ``failing`` or ``warning``.
    title, detail
        A few words, and the evidence.
    next_step
        A command, or advice.
    run, incident
        Its run and incident; empty for none.
    place
        Sort key within a state, the lowest first.
    runbook
        Name of its runbook, as in the failure library; empty for none.
    """

    state: str
    title: str
    detail: str
    next_step: str
    run: str = ""
    incident: str = ""
    place: int = 2
    runbook: str = ""
