"""What to do about a check that did not pass: a sentence, and a command to begin with."""

import re
from datetime import date
from typing import Final

from ranklake.quality.report.state import ERRORED, FAILING, QUARANTINED, WARNING

_REPEATED: Final = "steps_unique"
_NAME: Final = re.compile(r"[A-Za-z0-9_]+")
_REJECTED: Final = (
    "SELECT run, rank, reason, count(*) FROM rejects WHERE \\\"table\\\" = '{table}' GROUP BY run, rank, reason"
)
_WORD: Final = re.compile(r"[A-Za-z0-9_:.]+")


def next_step(table: str, kind: str, check_id: str, state: str, last: date | None) -> tuple[str, str]:
    """Return what to do and a command; both empty for a check that passed, and for a table whose name is none."""
    if state not in {ERRORED, FAILING, WARNING, QUARANTINED} or not _NAME.fullmatch(table):
        return "", ""
    if state == ERRORED:
        said = "Nothing is known: mend the cause that its message names, and check again."
        return said, f"ranklake check {table}"
    if state == QUARANTINED:
        said = "Its failing rows are in the table rejects. Find out which runs recorded them."
        return said, f'ranklake sql "{_REJECTED.format(table=table)}"'
    if check_id == _REPEATED:
        said = "A run's name was used again, or two processes recorded one rank: split the run into attempts."
        return said, "ranklake renumber RUN"
    if kind == "derived":
        said = "It was computed from other tables: mend what fails in those that it is made from, then roll up again."
        return said, "ranklake rollup"
    said = "The rows were recorded so: see what they have in common, and mend what records them."
    check = f" --check {check_id}" if _WORD.fullmatch(check_id) else ""
    return said, f"ranklake quality why {table} --date {last}{check}"
