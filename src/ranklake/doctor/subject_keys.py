"""Probe of the keys that columns about people are stored under."""

from collections.abc import Iterator
from typing import Final

from ranklake.context import Context
from ranklake.doctor.examination import Patient
from ranklake.doctor.finding import Finding, failed, not_known, ok
from ranklake.doctor.finding import skipped as nothing
from ranklake.printable import counted
from ranklake.redaction.redact import redact_uri
from ranklake.retention.subjects.keys import known_columns
from ranklake.retention.subjects.state import LOST, key_state

MOST_ROWS: Final = 5_000_000
"""Rows of a table whose values are looked at here: a column of as many texts takes about a second to read."""
_NAMED: Final = 5


def subject_keys(patient: Patient) -> Iterator[Finding]:
    """Check whether each key that was not forgotten is there, whole and readable, and what to do where one is not."""
    lake = Context.of(patient.config).open_lake()
    if not known_columns(lake.store):
        yield nothing("no column was stored under keys of subjects")
        return
    state = key_state(lake, MOST_ROWS)
    for where, wrong, hint in state.faults[:_NAMED]:
        yield failed(f"{redact_uri(where)}: a subject's key {wrong}", hint)
    if len(state.faults) > _NAMED:
        yield failed(
            f"{counted(len(state.faults) - _NAMED, 'key')} more are like that", "'ranklake erase keys' has all"
        )
    for column, rows in state.lost:
        yield failed(f"{column}: {counted(rows, 'row')} under keys that are lost", LOST)
    if state.is_sound:
        yield ok(f"{counted(state.keys, 'key')} of subjects, {state.forgotten:,} forgotten")
    if state.unread:
        message = f"keys of {', '.join(state.unread)} that are lost, as there are more than {MOST_ROWS:,} rows"
        yield not_known(message, "'ranklake erase keys' reads them all")
