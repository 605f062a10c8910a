"""Something that needs a look: with its evidence and the next step."""

from dataclasses import dataclass
from typing import Final

ORDER: Final = ("failing", "warning")
"""States of what needs a look, the worst first."""


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that needs a look.

    Attributes
    ----------
    state
        How bad it is: ``failing`` or ``warning``.
    title, detail
        In a few words, and its evidence.
    next_step
        A command, or what to look at.
    run, incident
        Run that it is about, and the incident; empty for none.
    place
        Among those of one state: the lowest comes first.
    runbook
        Its page's name, as in the failure library; empty for none.
    """

    state: str
    title: str
    detail: str
    next_step: str
    run: str = ""
    incident: str = ""
    place: int = 2
    runbook: str = ""
