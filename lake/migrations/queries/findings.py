"""What comes of looking at a text: edits, and what a person has to look at."""

from dataclasses import dataclass, field


class UnreadableError(Exception):
    """A file is not what its name says; why, in a clause."""


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Other text in the place of some; nothing is replaced where both places are the same.

    Attributes
    ----------
    begin, end
        Places in the text, in characters.
    text
        What comes there.
    """

    begin: int
    end: int
    text: str


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """Something about a query that a person has to look at.

    Attributes
    ----------
    place
        Where, in characters from the beginning of the text.
    what
        In a clause.
    is_note
        Whether the query was brought along all the same.
    """

    place: int
    what: str
    is_note: bool = False


@dataclass(slots=True)
class Outcome:
    """What comes of a text."""

    edits: list[Edit] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def add(self, other: "Outcome", shift: int = 0) -> None:
        """Add what came of a part that begins at a place."""
        self.edits += [Edit(one.begin + shift, one.end + shift, one.text) for one in other.edits]
        self.findings += [Finding(one.place + shift, one.what, one.is_note) for one in other.findings]


def edited(text: str, edits: list[Edit]) -> str:
    """Return a text with edits made. They must not overlap."""
    parts = []
    end = 0
    for one in sorted(edits):
        parts += [text[end : one.begin], one.text]
        end = one.end
    return "".join((*parts, text[end:]))
