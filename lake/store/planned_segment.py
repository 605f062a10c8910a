"""A segment's entry in a plan: everything except its bytes that determines the result of ingesting it.

Another process may repeat an unfinished plan, on another machine and with another configuration, and must get the same
result. Functions that read a segment therefore take its entry, and no other input that could differ. Type checks reject
undeclared keys, and plans that lack a required key.
"""

from typing import NotRequired, TypedDict


class EarlierCut(TypedDict):
    """A segment of the same slot file that an earlier plan ingested: its path and digest, and whether it was signed."""

    path: str
    sha256: str
    signed: bool


class PlannedSegment(TypedDict):
    """A segment's row of a plan.

    Attributes
    ----------
    path, others
        Its path; paths of other files whose names contain the same digest.
    table, bytes, rows, sha256
        From its name and the spool's listing.
    seen
        Slots of its slot file that were ingested before, in the notation of `ranklake.lake.ingest.deduplication`.
    earlier
        Segments of its slot file that earlier plans ingested. They are read if this segment contradicts them.
    refused
        Why the segment is not ingested; empty if it is.
    rule
        Index of its prefix's rule among the plan's rules; -1 for none.
    sign
        Whether it must be signed because its process signed an earlier segment.
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
