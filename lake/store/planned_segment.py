"""A segment's entry in a plan: everything besides its bytes that decides what becomes of it.

A plan is carried out again by whoever finds it unfinished, on another machine, under another configuration, and must
come to the same. So what reads a segment is given its row of the plan, as this type, and nothing else that may be
another next time: a key that the type does not declare is refused where types are checked, and so is a plan that does
not say one that it must.
"""

from typing import NotRequired, TypedDict


class EarlierCut(TypedDict):
    """A segment of the same slot file that an earlier plan took in: where it lies, and whether it was signed."""

    path: str
    sha256: str
    signed: bool


class PlannedSegment(TypedDict):
    """A segment's row of a plan.

    Attributes
    ----------
    path, others
        Where it lies; other files that claim the same digest.
    table, bytes, rows, sha256
        As the spool's listing and its name say.
    seen
        Slots of its slot file that came before, as `ranklake.lake.ingest.deduplication` says them.
    earlier
        Segments of its slot file that earlier plans took in, to be heard where it contradicts them.
    refused
        Why it is not taken in; empty where it is.
    rule
        Place of the rule, among those of the plan, that its prefix is under; -1 for none.
    sign
        Whether its process has signed before, and has to again.
    incarnation, segment
        Its slot file, in plans of replays.
    """

    path: str
    others: list[str]
    table: str
    bytes: int
    rows: int
    sha256: str
    seen: str
    earlier: NotRequired[list[EarlierCut]]
    refused: NotRequired[str]
    rule: NotRequired[int]
    sign: NotRequired[bool]
    incarnation: NotRequired[int]
    segment: NotRequired[int]
