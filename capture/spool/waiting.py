"""Waiting: what in a local spool has not been uploaded yet, by file names."""

from dataclasses import dataclass
from pathlib import Path

from ranklake.capture.spool.stream_files import open_files, sealed_files, streams


@dataclass(frozen=True, slots=True)
class Waiting:
    """Segments that wait to be sent, and their rows; files that are not sealed yet, whose rows nobody has counted."""

    segments: int = 0
    rows: int = 0
    unsealed: int = 0


def waiting(root: Path) -> Waiting:
    """Return what waits below a local spool; what cannot be listed is passed over."""
    segments = rows = unsealed = 0
    for folder in streams(root):
        try:
            sealed = sealed_files(folder)
            unsealed += len(open_files(folder))
        except OSError:  # it was sent meanwhile, or is another user's
            continue
        segments += len(sealed)
        rows += sum(file.rows for file in sealed)
    return Waiting(segments, rows, unsealed)
