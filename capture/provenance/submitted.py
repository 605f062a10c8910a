"""Submitted: when the scheduler received the job, as far as the environment says.

No scheduler puts it there by itself. A batch script may:

    export RANKLAKE_SUBMITTED_TS=$(squeue -h -j $SLURM_JOB_ID -o %V)
"""

import datetime as dt
from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "RANKLAKE_SUBMITTED_TS"
_LONGEST_WAIT: Final = dt.timedelta(days=366)
_SLACK: Final = dt.timedelta(minutes=5)


class NotSubmittedError(ValueError):
    """The environment says nothing usable; the text says why, and repeats nothing of it."""


def submitted_us(environ: Mapping[str, str], now: dt.datetime | None = None) -> int:
    """Return when the job was submitted, in microseconds since 1970.

    Parameters
    ----------
    environ
        `VARIABLE` is seconds since 1970, or ISO 8601; without an offset it is the host's local time, as Slurm has it.

    Raises
    ------
    NotSubmittedError
        It is not set, is neither, is in the future, or is more than a year ago.
    """
    given = environ.get(VARIABLE, "").strip()
    if not given:
        raise NotSubmittedError(f"{VARIABLE} is not set")
    moment = now or dt.datetime.now(dt.UTC)
    try:
        is_number = given.replace(".", "", 1).isdigit()
        found = dt.datetime.fromtimestamp(float(given), dt.UTC) if is_number else dt.datetime.fromisoformat(given)
        wait = moment - (found if found.tzinfo is not None else found.astimezone())
    except (ValueError, OverflowError, OSError):
        raise NotSubmittedError(f"{VARIABLE} is neither seconds since 1970 nor ISO 8601") from None
    if not -_SLACK <= wait <= _LONGEST_WAIT:
        raise NotSubmittedError(f"{VARIABLE} is in the future, or more than a year ago")
    return round((moment - wait).timestamp() * 1e6)
