"""Playbooks on a terminal: what there are, and how their steps stand."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from ranklake.insight.incidents.actions import UNKNOWN
from ranklake.pipeline.playbooks.file import Playbooks, keys_of
from ranklake.pipeline.playbooks.running import StepState, subject_of
from ranklake.printable import printable
from ranklake.views.table import TextColumn, fitting

if TYPE_CHECKING:
    from ranklake.pipeline.playbooks.file import Step

_STATES: Final = tuple(map(TextColumn, ("incident", "playbook", "step", "how it stands", "what")))
_MAY: Final = "it may have run: look, then repeat it by --again"


def playbook_lines(playbooks: Playbooks) -> Iterator[str]:
    """Yield each playbook with its steps."""
    for name, book in playbooks.playbooks.items():
        yield f"{name} ({printable(book.owner)}): {printable(keys_of(book.where))}; {book.per_hour:,} steps an hour"
        yield f"  {printable(book.reason)}"
        for step in book.steps:
            where = f" if {printable(keys_of(step.where))}" if list(step.where.patterns()) else ""
            yield f"  - {step.name}: {_kind(step)} {printable(subject_of(step))}{where}"


def playbook_facts(playbooks: Playbooks, stopped: str) -> dict[str, Any]:
    """Return playbooks as plain JSON values."""
    return {
        "stopped": stopped or None,
        "playbooks": [
            {
                "name": name, "owner": book.owner, "reason": book.reason, "per_hour": book.per_hour,
                "where": {key: list(texts) for key, texts in book.where.patterns()},
                "steps": [
                    {"name": step.name, "kind": step.kind, "acts": step.acts, "subject": subject_of(step),
                     "where": {key: list(texts) for key, texts in step.where.patterns()}}
                    for step in book.steps
                ],
            }
            for name, book in playbooks.playbooks.items()
        ],
    }  # fmt: skip


def _kind(step: "Step") -> str:
    return step.kind if step.acts else f"propose {step.kind}" if step.kind != "propose" else "propose:"


def state_lines(states: Sequence[StepState], width: int | None) -> list[str]:
    """Return how steps stand as a table."""
    cells = [
        (printable(state.incident.id), state.match.name, state.match.step.name,
         state.outcome if state.match.step.acts or state.outcome != "due" else "due, as a proposal",
         printable(_MAY if state.outcome == UNKNOWN else state.note or subject_of(state.match.step)))
        for state in states
    ]  # fmt: skip
    return fitting(_STATES, cells, width)
