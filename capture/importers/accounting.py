"""Accounting: times of a scheduler's jobs, and the columns computed from them, for the importers of all schedulers."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.importers.units import NOT_A_TIME

if TYPE_CHECKING:
    import re

    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Line

NO_GPUS: Final = "the file does not report GPUs: gpu_count and gpu_time_s are NULL"

_EPOCH_DIGITS: Final = {10: 10**6, 13: 1000}
"""Unit of a time since 1970 in µs, by its number of digits: seconds (since 2001) or milliseconds."""
_MAX_DIGITS: Final = 12


def add_job(recording: "ImportedRun", line: "Line", columns: dict[str, Any]) -> None:
    """Add a job with computed columns. Its ``ts`` is its end, or else its start, or else its submission.

    A job without any time is refused, and so is a job that ended before it started.
    """
    submit, start, end = (columns.get(name) for name in ("submit_ts", "start_ts", "end_ts"))
    at_us = end if end is not None else start if start is not None else submit
    if at_us is None:
        recording.refuse("jobs", "the job has no time", line.text, line.number)
        return
    if start is not None and end is not None and end < start:
        recording.refuse("jobs", "it ended before it started", line.text, line.number)
        return
    if submit is not None and start is not None and start >= submit:
        columns["queue_time_s"] = (start - submit) / 1e6
    if columns.get("elapsed_s") is None and start is not None and end is not None:
        columns["elapsed_s"] = (end - start) / 1e6
    gpus, elapsed_s = columns.get("gpu_count"), columns.get("elapsed_s")
    if gpus is not None and elapsed_s is not None:
        columns.setdefault("gpu_time_s", float(gpus * elapsed_s))
    recording.row("jobs", at_us * 1000, **columns)


@contextmanager
def refuse_flawed(recording: "ImportedRun", line: "Line") -> Iterator[None]:
    """Refuse a line if the block raises `ValueError`, with the error's text as reason."""
    try:
        yield
    except ValueError as error:
        recording.refuse("jobs", str(error), line.text, line.number)


def epoch_us(text: str) -> int | None:
    """Convert seconds or milliseconds since 1970 to µs; None for 0, -1 and "". Raises `ValueError` for other texts."""
    if text in {"", "0", "-1"}:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) not in _EPOCH_DIGITS:
        raise ValueError(NOT_A_TIME)
    return int(text) * _EPOCH_DIGITS[len(text)]


def count(text: str) -> int | None:
    """Parse an integer of at most 12 digits; None for other texts."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else None


def child(parent: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the JSON object at a key; empty if it is missing or no object."""
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def requested_gpus(match: "re.Match[str] | None", *, counts_gpus: bool, is_total: bool) -> int | None:
    """Return the number of GPUs that a job requests; None if it is unknown.

    Parameters
    ----------
    match
        The request, with the number as its first group; None if the job requests no GPU.
    counts_gpus
        Whether any job of the file requests GPUs. If not, the cluster may not count them, and 0 would be a guess.
    is_total
        Whether the number is that of the whole job, not of a node or a task.
    """
    if match is None:
        return 0 if counts_gpus else None
    return int(match[1]) if is_total else None


def counts_text(counts: Counter[str]) -> str:
    """Format counts by name as text.

    >>> counts_text(Counter({"R": 2, "D": 1000}))
    'D 1,000, R 2'
    """
    return ", ".join(f"{name} {number:,}" for name, number in sorted(counts.items()))


def seconds(text: str) -> float | None:
    """Convert a duration such as 10:16:36 to seconds; None for other texts."""
    parts = text.split(":")
    if not all(part.isdecimal() for part in parts[:-1]) or not parts[-1].replace(".", "", 1).isdecimal():
        return None
    total = 0.0
    for part in parts:
        total = total * 60 + float(part)
    return total
