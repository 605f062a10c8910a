"""The failure library: signatures of findings and log lines, each with a cause, a confidence and a fix.

A pattern is a text, not a regular expression. ``*`` in a pattern matches any text. So matching takes linear time, and
SQL can do the same with ``ILIKE``.
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
"""The cause of an incident of several hosts that share a switch or rack. No single finding has this cause."""
RESUME: Final = "resume from the last good checkpoint"
CRASH: Final = "crash"
"""The cause for any exception. A more specific cause from a log line comes before it."""


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
        """Return the fix, with the name of the run and how it can be resumed.

        >>> library()["disk-full"].remedy("begin again")
        'Delete old checkpoints and caches, or write elsewhere; then begin again.'
        """
        return self.fix.replace("{resume}", resume).replace("`ranklake show RUN`", f"`ranklake show {run}`")

    def matches(self, line: str) -> bool:
        """Whether a line matches one of the patterns, in upper or lower case.

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
    """Return the text of the library, which enters the digests of rollups that use it."""
    return files(__package__).joinpath(_FILE).read_text(encoding="utf-8")


@cache
def library() -> Mapping[str, Signature]:
    """Return the signatures by name, in the order of the file."""
    with as_file(files(__package__).joinpath(_FILE)) as path:
        entries = OperatorFile(path, noun="failure library").load(tuple[Signature, ...])
    return {entry.name: entry for entry in entries}


def causes_of(detectors: Mapping[str, Any], runbooks: Iterable[str | None], lines: Iterable[str] = ()) -> list[str]:
    """Return the names of signatures that match findings or log lines, the most likely first.

    The order is, in descending importance:

    1. `CRASH` comes last if log lines match a more specific signature.
    2. Signatures that match both findings and log lines come before those that match only one of them.
    3. Signatures with a higher confidence come first.
    4. Signatures with the more severe, then the earlier finding come first.
    5. Signatures come in the order of the file. For example, a bad batch raises the loss and the gradients of one step;
       the file has the cause of the loss first.

    Parameters
    ----------
    detectors
        Sort key (index of the severity, start) by detector, for detectors with findings.
    runbooks
        Runbooks of the findings, which may be from older versions of detectors.
    lines
        Log lines.
    """
    finding_runbooks, texts = set(runbooks), list(lines)
    logged = {name for name, signature in library().items() if any(map(signature.matches, texts))}
    keys: dict[str, tuple[object, ...]] = {}
    for index, (name, signature) in enumerate(library().items()):
        weights = [
            detectors[detector.name]
            for detector in DETECTORS
            if detector.runbook == name and detector.name in detectors
        ]
        count = bool(weights or name in finding_runbooks) + (name in logged)
        if count:
            confidence = CONFIDENCES.index(signature.confidence)
            is_generic = name == CRASH and bool(logged - {CRASH})
            keys[name] = (is_generic, -count, confidence, not weights, *sorted(weights)[:1], index)
    return sorted(keys, key=keys.__getitem__)
