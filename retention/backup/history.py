"""Drills, and the table ``backups`` with the outcome of each backup and drill, and its RPO and RTO.

A failure is also a row. While a place is out of reach, the age of its newest backup grows from row to row.
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
    """Result of a drill.

    Attributes
    ----------
    started
        Start time, UTC.
    backup, as_of
        Number of the backup, and the point in time that it restores.
    rpo_s
        Age of the backup: seconds of commits that would be lost if the lake were lost now. Segments that are still in
        the spool would not be lost.
    rto_s
        Seconds from the start until the lake was restored and verified.
    tables, rows, files, size_bytes
        Amounts that were restored.
    faults
        Differences from the backup and failed checks, one line each; empty if there are none.
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
    """Restore the newest backup into a scratch folder, verify it, and write the result to the place.

    Raises `ranklake.retention.backup.place.BackupError` if there is no backup or if bytes are damaged, and the errors
    of stores. The scratch folder is always deleted.
    """
    started, begin = datetime.now(UTC), time.monotonic()
    backup = choose(place)
    with tempfile.TemporaryDirectory(prefix="ranklake-drill-") as folder:
        target = Store.at(f"{folder}/lake")
        result = restore(place, backup, target)
        # Without the witness, which belongs to the original lake.
        lake = Lake.open(target.uri, config=replace(config, audit=AuditSection()))
        faults = tuple(_faults(lake, backup))
        rto_s = time.monotonic() - begin
    drill_result = DrillResult(
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
    write_file(place, f"{DRILLS}/{started:%Y%m%dT%H%M%S.%f}.json", json.dumps(drill_result.plain()).encode())
    return drill_result


def last_drill(place: Store) -> dict[str, Any] | None:
    """Return the result of the last drill of a place, as in `DrillResult.plain`; None if there was none."""
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


Outcome = TypeVar("Outcome")
_LOG: Final = logging.getLogger(__name__)
TABLE: Final = "backups"
BACKUP: Final = "backup"
DRILL: Final = "drill"
_FAULTS: Final = 3
_HINT: Final = "run 'ranklake backup' to it, or delete it"


def recorded_backup(lake: "Lake", uri: str, keep: int = 0) -> BackupResult:
    """Back a lake up and record the outcome. Raises the errors of `ranklake.retention.backup.backup.backup`."""
    with _attempt(lake, BACKUP, uri) as row:
        result = backup(lake, uri, keep)
        new = result.backup
        row |= {
            "reason": f"damaged files: {', '.join(new.damaged[:_FAULTS])}" if new.damaged else None,
            "backup": new.number,
            "as_of_ts": new.created,
            "rows": new.rows,
            "files": len(new.files),
            "size_bytes": new.size_bytes,
            "copied_bytes": result.copied_bytes + result.manifest_bytes,
        }
    return result


def recorded_drill(lake: "Lake | None", place: "Store", config: "LakeConfig") -> DrillResult:
    """Carry out a drill, and record the outcome if the lake exists and owns the backups.

    Raises the errors of `drill`.
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


def for_each_place(
    places: Iterable[str], work: Callable[[str], Outcome]
) -> tuple[dict[str, Outcome], dict[str, Exception]]:
    """Call `work` for each place, continuing after a failure. Return results and errors, by place."""
    results, failed = dict[str, Outcome](), dict[str, Exception]()
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
    """Yield a row to fill in, and add it to the table at the end, also after an error.

    Adds no row for a place that is not configured and never had a backup, since its URI is probably mistyped.
    """
    started, begin = datetime.now(UTC), time.monotonic()
    row: dict[str, Any] = {
        "ts": started,
        "date": started.date(),
        "kind": kind,
        "place": redact_uri(uri),
        "reason": None,
    }
    try:
        yield row
    except Exception as error:
        row["reason"] = str(redact(error.what if isinstance(error, RanklakeError) else type(error).__name__))
        raise
    finally:
        _append(lake, {**row, "duration_s": time.monotonic() - begin})


def _append(lake: "Lake", row: dict[str, Any]) -> None:
    """Add a row. An account that may only read the lake can still back it up; then a warning is logged instead."""
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
    """Return the age of a place's newest backup at the time of a row; None if the place has no backup."""
    columns = ["kind", "place", "outcome", "as_of_ts"]
    rows = read(lake.tables, contract(TABLE), columns).to_pylist()
    facts = {"kind": BACKUP, "place": row["place"], "outcome": "ok"}
    times = [item["as_of_ts"] for item in rows if facts.items() <= item.items()]
    return max(0.0, (row["ts"] - max(times)).total_seconds()) if times else None
