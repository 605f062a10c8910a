"""Texts within texts: strings of JSON, cells of notebooks, literals of Python; edits of the inner as the outer's.

notebook's JSON ─▶ lines of a cell ─▶ literals of Python ─▶ SQL ─▶ edits ─▶ edits of the cell ─▶ edits of the JSON
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from ranklake.lake.migrations.queries.findings import Edit, Finding, Outcome
from ranklake.lake.migrations.queries.placeholders import Span

Escape = Callable[[str], str | None]
"""How a piece writes a text; None where it cannot."""


@dataclass(slots=True)
class Layer:
    """A text, written in pieces of another.

    Attributes
    ----------
    text
        What it says.
    spans
        Where the other text has each of its characters.
    pieces
        In which piece each is.
    escapes
        How each piece writes a text.
    holes
        Places in `text` where something unknown is filled in.
    """

    text: str = ""
    spans: list[Span] = field(default_factory=list)
    pieces: list[int] = field(default_factory=list)
    escapes: list[Escape] = field(default_factory=list)
    holes: list[Span] = field(default_factory=list)

    def add(self, other: "Layer") -> None:
        """Add what goes on in other pieces."""
        self.holes += [(begin + len(self.text), end + len(self.text)) for begin, end in other.holes]
        self.pieces += [number + len(self.escapes) for number in other.pieces]
        self.text += other.text
        self.spans += other.spans
        self.escapes += other.escapes

    def outer(self, found: Outcome) -> Outcome:
        """Return what comes of this text as what comes of the other; all of its edits, or none."""
        findings = [Finding(self._place(one.place), one.what, one.is_note) for one in found.findings]
        edits = [self._edit(one) for one in found.edits]
        if None in edits:
            what = "a name, or what becomes of it, does not fit into one piece of the text; rewrite it by hand"
            place = self._place(found.edits[edits.index(None)].begin)
            return Outcome([], [*(one for one in findings if not one.is_note), Finding(place, what)])
        return Outcome([one for one in edits if one is not None], findings)

    def _edit(self, one: Edit) -> Edit | None:
        first = min(one.begin, len(self.pieces) - 1) if one.begin < one.end else one.begin - 1
        last = max(one.end - 1, first)
        piece = self.pieces[first]
        written = self.escapes[piece](one.text)
        if piece != self.pieces[last] or written is None:
            return None
        end = self.spans[last][1]
        return Edit(self.spans[first][0] if one.begin < one.end else end, end, written)

    def _place(self, place: int) -> int:
        return self.spans[min(place, len(self.spans) - 1)][0] if self.spans else 0
