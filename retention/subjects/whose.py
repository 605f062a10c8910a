"""Whose a value is: a person, who is the same in whichever letters the name is written, or else a run."""

from dataclasses import dataclass
from unicodedata import normalize


@dataclass(frozen=True, slots=True)
class RunSubject:
    """The subject of values of which no person is named: their run, whose name tells cases apart."""

    run: str


Whose = str | RunSubject
"""A person, by name, or a run."""


def folded(name: str) -> str:
    """Return a person's name as it is compared: case, form of its letters, and spaces around it do not count."""
    return normalize("NFC", normalize("NFD", name.strip()).casefold()).strip()


def looked_up(subject: Whose) -> str:
    """Return what a subject's key is looked up by; no person's begins with a space, and every run's does."""
    return f" run {subject.run}" if isinstance(subject, RunSubject) else folded(subject)
