"""Fallback spool: where a node's segments go while its spool is away, so that its disk need not hold a long outage.

    first spool  ◀──PUT fails for `after_s`──  agent  ──▶  fallback spool
         ▲                                                      │
         └──────────── ingest moves each object, unchanged ─────┘

A segment goes to one of the two: copies in both would double the bytes on every day without an outage. It may still be
in both, if the first stored a PUT without confirming it, or the agent was killed before it noted the
confirmation. Ingest stores a slot once, wherever it comes from. The agent tries the first again as the breaker lets it,
and goes back with the first success. Readers of a spool (ingest, replay, erasure, lineage) read the first alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ranklake.capture.recording.breaker import BreakerState


@dataclass(frozen=True, slots=True)
class Fallback:
    """A fallback spool.

    Attributes
    ----------
    uri
        Where it is; empty if there is none.
    storage_options
        Handed to fsspec.
    after_s
        Seconds that the first spool fails before segments go here.
    """

    uri: str = ""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    after_s: float = 600.0

    def replaces(self, first: BreakerState) -> bool:
        """Whether segments go here now, by the state of the first spool's breaker."""
        return bool(self.uri) and first.wait_s > 0 and first.away_s >= self.after_s
