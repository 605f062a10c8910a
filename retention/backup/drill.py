"""A drill: restores the newest backup into a scratch folder, and holds what came back against what was backed up.

Every byte is compared with its digest while it is written. Then the lake is opened: versions, files and rows of every
table, the chain of the audit log, and the reconciliation of rows. What it measured is kept beside the backups.
"""

import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ranklake.lake.audit.proof import prove
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.store.files import listed
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import AuditSection, LakeConfig
from ranklake.lake.store.store import Store
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.tables import delta_table
from ranklake.retention.backup.encryption import read_file, write_file
from ranklake.retention.backup.place import DRILLS, TableState
from ranklake.retention.backup.restore import choose, restore

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
