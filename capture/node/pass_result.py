"""Pass result: what one scan of the local spool did."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PassResult:
    """What one look at the local spool did.

    Attributes
    ----------
    streams
        Of dead processes, taken over.
    segments, rows, packs
        Uploaded, and in how many objects.
    left
        Segments that should have been uploaded and could not be.
    alive, foreign
        Streams that are being written; streams meant for another spool, which are passed by.
    others
        Streams of other users, which are passed by, too.
    failure
        Why the last upload failed; empty if none did.
    troubles
        One line for each stream that could not be finished.
    """

    streams: int = 0
    segments: int = 0
    rows: int = 0
    packs: int = 0
    left: int = 0
    alive: int = 0
    foreign: int = 0
    others: int = 0
    troubles: tuple[str, ...] = ()
    failure: str = ""
