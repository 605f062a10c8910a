"""The table ``backups``: each backup and drill that was tried, how it went, RPO and RTO; and how a drill runs.

A failure is a row, too: while a place is out of reach, the age of its newest backup grows from row to row.
"""

import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ranklake.errors import RanklakeError
from ranklake.lake.audit.proof import prove
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans.plan import append_own
from ranklake.lake.store.files import listed
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import AuditSection, LakeConfig
from ranklake.lake.store.store import Store
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table
from ranklake.redaction.redact import redact, redact_uri
from ranklake.retention.backup.backup import BackupResult, backup
from ranklake.retention.backup.place import DRILLS, TableState, lake_of, read_file, write_file
from ranklake.retention.backup.restore import choose, restore
from ranklake.retention.proposals.identities import owner

if TYPE_CHECKING:
    from ranklake.retention.backup.place import Backup


@dataclass(frozen=True, slots=True)
class DrillResult:
    """What a drill measured.

    Attributes
    ----------
    started
        When, UTC.
    backup, as_of
        Number of the backup, and the point in time that it leads to.
    rpo_s
        Age of the backup: seconds of commits that would be lost if the lake were lost now. Segments that the spool
        still has are not lost.
    rto_s
        Seconds from the start until the lake was restored and verified.
    tables, rows, files, size_bytes
        What came back.
    faults
        What differs from the backup, or does not add up, in lines; empty if all is well.
    """

    started: datetime
    backup: int
    as_of: datetime
    rpo_s: float
    rto_s: float
    tables: int
    rows: int
    files: int
    size_bytes: int
    faults: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        times = {"started": self.started.isoformat(), "as_of": self.as_of.isoformat()}
        return {**asdict(self), **times, "faults": list(self.faults)}


def drill(place: Store, config: LakeConfig) -> DrillResult:
    """Restore the newest backup into a scratch folder, verify it, and write down how long that took.

    Raises `ranklake.retention.backup.place.BackupError` where there is none or where bytes are damaged, and what stores
    raise. The scratch folder is deleted in any case.
    """
    started, begin = datetime.now(UTC), time.monotonic()
    backup = choose(place)
    with tempfile.TemporaryDirectory(prefix="ranklake-drill-") as folder:
        target = Store.at(f"{folder}/lake")
        result = restore(place, backup, target)
        # The witness is the lake's, and not that of a copy.
        lake = Lake.open(target.uri, config=replace(config, audit=AuditSection()))
        faults = tuple(_faults(lake, backup))
        rto_s = time.monotonic() - begin
    measured = DrillResult(
        started=started,
        backup=backup.number,
        as_of=backup.created,
        rpo_s=max(0.0, (started - backup.created).total_seconds()),
        rto_s=rto_s,
        tables=len(backup.tables),
        rows=backup.rows,
        files=result.files,
        size_bytes=result.written_bytes,
        faults=faults,
    )
    write_file(place, f"{DRILLS}/{started:%Y%m%dT%H%M%S.%f}.json", json.dumps(measured.plain()).encode())
    return measured


def last_drill(place: Store) -> dict[str, Any] | None:
    """Return what the last drill of a place measured, as `DrillResult.plain`; None where there was none."""
    paths = sorted(entry.path for entry in listed(place.fs, place.path(DRILLS)) if entry.path.endswith(".json"))
    if not paths:
        return None
    facts: dict[str, Any] = json.loads(read_file(place, f"{DRILLS}/{paths[-1].rpartition('/')[2]}"))
    return facts


def _faults(lake: Lake, backup: "Backup") -> Iterator[str]:
    yield from (f"{path}: its bytes were damaged when it was backed up" for path in backup.damaged)
    for name, state in backup.tables.items():
        handle = delta_table(lake.store, name)
        if handle is None:
            yield f"{name}: the table is missing"
            continue
        actual = TableState.of(handle, files(handle))
        if actual != state:
            yield f"{name}: {actual} where the backup has {state}"
    proof = prove(lake)
    if not proof.whole:
        yield f"audit log: {proof.why}"
    yield from (f"{item.table}: {fault}" for item in balance(lake) for fault in item.faults)


Made = TypeVar("Made")
_LOG: Final = logging.getLogger(__name__)
TABLE: Final = "backups"
BACKUP: Final = "backup"
DRILL: Final = "drill"
_FAULTS: Final = 3
_HINT: Final = "run 'ranklake backup' to it, or delete it"


def recorded_backup(lake: "Lake", uri: str, keep: int = 0) -> BackupResult:
    """Back a lake up, and keep how that went. Raises as `ranklake.retention.backup.backup.backup`."""
    with _attempt(lake, BACKUP, uri) as row:
        result = backup(lake, uri, keep)
        made = result.backup
        row |= {
            "reason": f"damaged files: {', '.join(made.damaged[:_FAULTS])}" if made.damaged else None,
            "backup": made.number,
            "as_of_ts": made.created,
            "rows": made.rows,
            "files": len(made.files),
            "size_bytes": made.size_bytes,
            "copied_bytes": result.copied_bytes + result.manifest_bytes,
        }
    return result


def recorded_drill(lake: "Lake | None", place: "Store", config: "LakeConfig") -> DrillResult:
    """Carry out a drill, and keep how that went in the lake, where that is there and the backups are its own.

    Raises as `drill` does.
    """
    if lake is None or lake_of(place) != owner(lake.store):
        return drill(place, config)
    with _attempt(lake, DRILL, place.uri) as row:
        result = drill(place, config)
        row |= {
            "reason": "; ".join(result.faults[:_FAULTS]) or None,
            "backup": result.backup,
            "as_of_ts": result.as_of,
            "rpo_s": result.rpo_s,
            "rto_s": result.rto_s,
            "rows": result.rows,
            "files": result.files,
            "size_bytes": result.size_bytes,
        }
    return result


def for_each_place(places: Iterable[str], work: Callable[[str], Made]) -> tuple[dict[str, Made], dict[str, Exception]]:
    """Call `work` for each place, continuing after a failure. Return results and errors, by place."""
    results, failed = dict[str, Made](), dict[str, Exception]()
    for uri in places:
        try:
            results[uri] = work(uri)
        except Exception as error:  # noqa: BLE001 - whatever a store raises
            failed[uri] = error
    return results, failed


def follow_removals(lake: "Lake") -> Sequence[str]:
    """Back a lake up to each configured place after a removal; return lines about places that could not be reached."""
    _, failed = for_each_place(lake.config.backup.to, lambda uri: recorded_backup(lake, uri))
    return [
        f"{redact_uri(uri)} still holds what was removed ({type(error).__name__}): {_HINT}"
        for uri, error in failed.items()
    ]


@contextmanager
def _attempt(lake: "Lake", kind: str, uri: str) -> "Iterator[dict[str, Any]]":
    """Give the facts of a row to fill in, and add the row at the end, also where something was raised.

    A place that is not configured, and that no backup ever reached, leaves none: its URI was mistyped.
    """
    began, begin = datetime.now(UTC), time.monotonic()
    row: dict[str, Any] = {"ts": began, "date": began.date(), "kind": kind, "place": redact_uri(uri), "reason": None}
    try:
        yield row
    except Exception as error:
        row["reason"] = str(redact(error.what if isinstance(error, RanklakeError) else type(error).__name__))
        raise
    finally:
        _append(lake, {**row, "duration_s": time.monotonic() - begin})


def _append(lake: "Lake", row: dict[str, Any]) -> None:
    """Add a row. Whoever may only read the lake may back it up all the same; then the log says that it is missing."""
    configured = set(map(redact_uri, lake.config.backup.to))

    def compose(_: object) -> list[dict[str, Any]]:
        age_s = _age_s(lake, row)
        is_reached = row["kind"] == DRILL or "backup" in row or age_s is not None
        if not is_reached and row["place"] not in configured:
            return []
        return [{"rpo_s": age_s, **row, "outcome": "failed" if row["reason"] else "ok"}]

    try:
        append_own(lake.tables, TABLE, compose)
    except (RanklakeError, OSError) as error:
        _LOG.warning("no row in the table %s: %s", TABLE, type(error).__name__)


def _age_s(lake: "Lake", row: dict[str, Any]) -> float | None:
    """Return how old the newest backup in a place was when something began there; None before the first."""
    columns = ["kind", "place", "outcome", "as_of_ts"]
    rows = read(lake.tables, contract(TABLE), columns).to_pylist()
    wanted = {"kind": BACKUP, "place": row["place"], "outcome": "ok"}
    made = [item["as_of_ts"] for item in rows if wanted.items() <= item.items()]
    return max(0.0, (row["ts"] - max(made)).total_seconds()) if made else None
