"""Fallback spool: takes a node's segments while its spool is unreachable, so that they do not fill the local disk.

    first spool  ◀──PUT fails for `after_s`──  agent  ──▶  fallback spool
         ▲                                                      │
         └──────────── ingest moves each object, unchanged ─────┘

A segment is sent to one of both spools, because copies in both would double the bytes on days without an outage. It may
still be in both, if the first spool stored a PUT without confirming it, or the agent was killed before it recorded the
confirmation. Ingest stores each slot once. The agent tries the first spool again as the breaker allows, and returns to
it after the first success. Readers of a spool (ingest, replay, erasure, lineage) read only the first spool.
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
        URI; empty if there is none.
    storage_options
        Options for fsspec.
    after_s
        Seconds that the first spool must have failed before the fallback is used.
    """

    uri: str = ""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    after_s: float = 600.0

    def replaces(self, first: BreakerState) -> bool:
        """Whether segments are sent to the fallback now, by the state of the first spool's breaker."""
        return bool(self.uri) and first.wait_s > 0 and first.away_s >= self.after_s
