"""Verifies recorded artifacts one after another, within a limit, the longest unverified first."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ranklake.allowed import AllowedPlaces, NotAllowedError
from ranklake.artifacts import Verdict, verify
from ranklake.errors import RanklakeError
from ranklake.redaction.redact import redact_uri

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ranklake.capture.assets.merkle_digest import Progress
    from ranklake.lake.store.store import Store

NOTED_BYTES: Final = 8 * 2**30
"""Bytes hashed between two writes of verdicts, so that an interrupted call can be resumed."""


@dataclass(slots=True)
class RehashResult:
    """Result of one call.

    Attributes
    ----------
    verdicts
        One for each verified artifact.
    closed
        Rows of artifacts that may not be opened.
    waiting
        Number of artifacts left for the next call.
    """

    verdicts: list[Verdict] = field(default_factory=list)
    closed: list[dict[str, Any]] = field(default_factory=list)
    waiting: int = 0

    @property
    def wrong(self) -> list[Verdict]:
        """Verdicts of altered artifacts."""
        return [verdict for verdict in self.verdicts if not verdict.is_good]

    @property
    def hashed_bytes(self) -> int:
        """Bytes that were read."""
        return sum(verdict.digest.size_bytes for verdict in self.verdicts if verdict.digest is not None)


def quiet(name: str) -> "AbstractContextManager[None]":
    """Return a context that reports no progress."""
    del name
    return nullcontext()


def rehash(
    store: "Store",
    rows: Sequence[dict[str, Any]],
    allow: AllowedPlaces,
    noted: Callable[[list[Verdict]], None],
    *,
    limit: int,
    most_bytes: int,
    progress: "Callable[[str], AbstractContextManager[Progress | None]]" = quiet,
) -> RehashResult:
    """Verify artifacts in the order of `ranklake.artifacts.longest_unverified`.

    An artifact that cannot be read gets a verdict, and the others are verified nevertheless.

    Parameters
    ----------
    noted
        Stores verdicts; also called in between.
    limit, most_bytes
        Most artifacts, and most recorded bytes; at least one artifact is verified.
    progress
        Function of an artifact's name that returns a context with its progress callback, or None.
    """
    result = RehashResult()
    unnoted: list[Verdict] = []
    planned = since = 0
    for place, row in enumerate(rows):
        size = row["bytes"] or 0
        if len(result.verdicts) >= limit or (result.verdicts and planned + size > most_bytes):
            result.waiting = len(rows) - place
            break
        try:
            with progress(row["name"]) as advance:
                verdict = verify(store, row, allow, progress=advance)
        except NotAllowedError:
            result.closed.append(row)
            continue
        except (RanklakeError, OSError) as error:
            verdict = Verdict(row, redact_uri(row["uri"]), f"it cannot be read ({type(error).__name__})", None)
        planned, since = planned + size, since + size
        result.verdicts.append(verdict)
        unnoted.append(verdict)
        if since >= NOTED_BYTES:
            noted(unnoted)
            unnoted, since = [], 0
    if unnoted:
        noted(unnoted)
    return result
