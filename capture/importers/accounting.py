"""What accounting of all schedulers has in common: a job's times, and what follows from them."""

from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.importers.units import NOT_A_TIME

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Line

NO_GPUS: Final = "nothing in the file tells of GPUs: gpu_count and gpu_time_s are NULL"

_EPOCH_DIGITS: Final = {10: 10**6, 13: 1000}
"""Of seconds since 1970 from 2001 on, and of milliseconds: µs in each."""
_MOST_DIGITS: Final = 12


def add_job(recording: "ImportedRun", line: "Line", columns: dict[str, Any]) -> None:
    """Add a job with what follows from its columns, dated to its end, else its start, else its submission.

    A job without any of these is refused, as is one that ended before it started.
    """
    submit, start, end = (columns.get(name) for name in ("submit_ts", "start_ts", "end_ts"))
    at_us = end if end is not None else start if start is not None else submit
    if at_us is None:
        recording.refuse("jobs", "no time is known", line.text, line.number)
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


def epoch_us(text: str) -> int | None:
    """Return seconds since 1970 as µs; None for 0, -1 and nothing. Raises `ValueError`, fit to be shown."""
    if text in {"", "0", "-1"}:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) not in _EPOCH_DIGITS:
        raise ValueError(NOT_A_TIME)
    return int(text) * _EPOCH_DIGITS[len(text)]


def count(text: str) -> int | None:
    """Return a whole number; None for what is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None


def seconds(text: str) -> float | None:
    """Return a duration such as 10:16:36 in seconds; None for what is none."""
    parts = text.split(":")
    if not all(part.isdecimal() for part in parts[:-1]) or not parts[-1].replace(".", "", 1).isdecimal():
        return None
    total = 0.0
    for part in parts:
        total = total * 60 + float(part)
    return total
