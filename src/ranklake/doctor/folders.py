"""Probes of the lake's folders: logs of its tables, and what lies among the plans."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ranklake.context import Context
from ranklake.doctor.finding import Finding, failed, ok, warning
from ranklake.printable import counted, printable

if TYPE_CHECKING:
    from ranklake.doctor.examination import Patient
    from ranklake.lake.store.store import Store

_PLAN: Final = re.compile(r"(?P<number>[0-9]{10})\.json")
_LOG: Final = "_delta_log"


def logs(patient: "Patient") -> Iterator[Finding]:
    """Check whether each table that has files has its log: without it the files are nobody's, and a new one begins."""
    lake = Context.of(patient.config).open_lake()
    tables = _names(lake.store, "tables")
    lost = [
        table
        for table in tables
        if _names(lake.store, "tables", table) and not _names(lake.store, "tables", table, _LOG)
    ]
    for table in lost:
        message = f"table {printable(table)} has files and no log: to who reads it, it is empty"
        yield failed(
            message, f"restore {lake.store.table_uri(table)}/{_LOG} from a backup before anything is written there"
        )
    if not lost:
        yield ok(f"{counted(len(tables), 'table')} with their logs")


def no_plans(store: "Store", following: int) -> Iterator[Finding]:
    """Say which files beside the plans are none, or stand where no plan can stand yet.

    Parameters
    ----------
    following
        Number of the next plan.
    """
    names = [name for name in _names(store, "plans") if not name.endswith(".tmp")]
    matches = {name: _PLAN.fullmatch(name) for name in names}
    strange = sorted(name for name, match in matches.items() if match is None or int(match["number"]) > following)
    if strange:
        more = f" and {counted(len(strange) - 1, 'more')}" if strange[1:] else ""
        message = f"plans/{printable(strange[0])}{more}: no plan of this lake, whose next is {following}"
        yield warning(message, "find out who put it there, and remove it: nothing reads it today")


def _names(store: "Store", *folder: str) -> list[str]:
    """Return the names in a folder of the lake; none where there is no such folder."""
    try:
        result = store.fs.ls(store.path(*folder), detail=False)
    except FileNotFoundError:
        return []
    return [name for path in result if (name := path.rstrip("/").rpartition("/")[2])]
