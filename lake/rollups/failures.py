"""The failure library: signatures of findings and log lines, each with a cause, its confidence and what to do.

Patterns are texts, not regular expressions: the parts of one stand in a line in their order, with anything between.
Matching takes time in proportion to the line, and SQL can do the same with ``ILIKE``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from typing import Any, Final, Literal

from ranklake.lake.rollups.detectors.registry import DETECTORS
from ranklake.operator_files import OperatorFile

_FILE: Final = "failures.yaml"
CONFIDENCES: Final = ("high", "medium", "low")
SHARED: Final = "shared-place"
"""The cause of an incident of hosts that share a switch or rack, which no single finding points to."""
RESUME: Final = "resume from the last good checkpoint"
CRASH: Final = "crash"
"""The cause that only says that there was an exception: whatever a log line says of it comes before."""


@dataclass(frozen=True)
class Signature:
    """One entry of the library; its attributes are the keys of ``failures.yaml``, where they are described."""

    name: str
    cause: str
    confidence: Literal["high", "medium", "low"]
    fix: str
    logs: tuple[str, ...] = ()
    sample: str = ""
    other: str = ""

    def remedy(self, resume: str = RESUME, run: str = "RUN") -> str:
        """Return what to do first, given what a run can go on from, and its name; by default without knowing.

        >>> library()["disk-full"].remedy("begin again")
        'Delete old checkpoints and caches, or write elsewhere; then begin again.'
        """
        return self.fix.replace("{resume}", resume).replace("`ranklake show RUN`", f"`ranklake show {run}`")

    def matches(self, line: str) -> bool:
        """Whether a line has one of the patterns, in capitals or not.

        >>> library()["disk-full"].matches("OSError: [Errno 28] no space left on device")
        True
        """
        folded = line.casefold()
        return any(_matches_pattern(folded, pattern) for pattern in self.logs)


def _matches_pattern(folded: str, pattern: str) -> bool:
    place = 0
    for part in pattern.casefold().split("*"):
        place = folded.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return True


@cache
def library_text() -> str:
    """Return the text of the library, for digests of what is made with it."""
    return files(__package__).joinpath(_FILE).read_text(encoding="utf-8")


@cache
def library() -> Mapping[str, Signature]:
    """Return the signatures by name, in the order of the file."""
    with as_file(files(__package__).joinpath(_FILE)) as path:
        entries = OperatorFile(path, noun="failure library").load(tuple[Signature, ...])
    return {entry.name: entry for entry in entries}


def causes_of(detectors: Mapping[str, Any], runbooks: Iterable[str | None], lines: Iterable[str] = ()) -> list[str]:
    """Return names of signatures that findings and log lines point to, the likeliest first.

    Those with more signs come first: a log line counts as much as findings of a detector; then the more confident, then
    that of the worst finding, then that of the first one. A batch that makes the loss jump makes the gradients of its
    step jump, too: of findings that begin together, the one whose signature stands first in the file is the cause. That
    there was an exception comes after what a log line says of it.

    Parameters
    ----------
    detectors
        Those with findings, each of which points to its runbook, and what orders them: the rank of the severity and
        the begin, the least first.
    runbooks
        Of findings: rows of older versions may name others.
    lines
        Log lines.
    """
    named, texts = set(runbooks), list(lines)
    logged = {name for name, signature in library().items() if any(map(signature.matches, texts))}
    keys: dict[str, tuple[object, ...]] = {}
    for place, (name, signature) in enumerate(library().items()):
        weights = [detectors[each.name] for each in DETECTORS if each.runbook == name and each.name in detectors]
        count = bool(weights or name in named) + (name in logged)
        if count:
            sureness = CONFIDENCES.index(signature.confidence)
            is_generic = name == CRASH and bool(logged - {CRASH})
            keys[name] = (is_generic, -count, sureness, not weights, *sorted(weights)[:1], place)
    return sorted(keys, key=keys.__getitem__)
