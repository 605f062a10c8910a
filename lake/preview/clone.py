"""A shallow clone of a lake: its tables' logs, copied, and links to its data files.

What is committed to the clone is committed there alone, and what is deleted there is a link. Of a lake in an object
store the data files are fetched, since nothing can link to them.
"""

import shutil
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ranklake.lake.plans.plan import last_finished, read_plan
from ranklake.lake.store.reachability import LakeError
from ranklake.lake.store.store import MARKER, Lake
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.tables import delta_table

if TYPE_CHECKING:
    import pyarrow as pa

_TRIES: Final = 5
_LOG: Final = "_delta_log"


class BusyLakeError(LakeError):
    """A lake that others change while it is cloned."""


def clone(lake: Lake, place: Path, tables: Collection[str]) -> Lake:
    """Return a clone in an empty folder of all tables' logs, and of the data files of some tables.

    It is of one moment: between two plans. Raises `BusyLakeError` where there is none.
    """
    for number in range(_TRIES):
        folder = place / f"lake-{number}"
        plan = last_finished(lake)
        if read_plan(lake, plan + 1) is None:
            try:
                found = _with_logs(lake, folder)
            except FileNotFoundError:  # a log was cleaned up meanwhile
                shutil.rmtree(folder, ignore_errors=True)
                continue
            if last_finished(lake) == plan and read_plan(lake, plan + 1) is None:
                _with_data(lake, found, tables)
                return found
            shutil.rmtree(folder, ignore_errors=True)
    hint = "run it again when no ingest is under way; ranklake ingest finishes a plan that was left half done"
    raise BusyLakeError("a plan is under way", where=lake.uri, hint=hint)


def _with_logs(lake: Lake, folder: Path) -> Lake:
    folder.mkdir()
    for name in lake.contracts():
        log = lake.path("tables", name, _LOG)
        if lake.fs.exists(log):
            # its pointer first: what it points to is there as long as nobody cleans up
            for path in sorted(lake.fs.ls(log, detail=False), key=lambda one: not one.endswith("_last_checkpoint")):
                _copy(lake, path, folder / "tables" / name / _LOG / path.rpartition("/")[2])
    kept = lake.path("contracts")
    for path in lake.fs.ls(kept, detail=False) if lake.fs.exists(kept) else []:
        _copy(lake, path, folder / "contracts" / path.rpartition("/")[2])
    _copy(lake, lake.path(MARKER), folder / MARKER)
    return Lake.open(str(folder)).configured(contracts=lake.config.contracts, cost=lake.config.cost)


def _copy(lake: Lake, path: str, target: Path) -> None:
    if path.endswith(".tmp"):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(lake.fs.cat_file(path))


def _with_data(lake: Lake, found: Lake, tables: Collection[str]) -> None:
    live: dict[str, pa.Table] = {}
    for name in sorted(tables):
        handle = delta_table(found, name)
        if handle is not None:
            live[name] = files(handle).select(["path", "size_bytes"])
    _refuse_full(lake, found, sum(sum(rows["size_bytes"].to_pylist()) for rows in live.values()))
    for name, rows in live.items():
        for path in rows["path"].to_pylist():
            target = Path(found.path("tables", name, path))
            target.parent.mkdir(parents=True, exist_ok=True)
            if lake.is_local:
                target.symlink_to(lake.path("tables", name, path))
            else:
                lake.fs.get_file(lake.path("tables", name, path), str(target))


def _refuse_full(lake: Lake, found: Lake, size_bytes: int) -> None:
    """Raise `LakeError` where a copy of the files, if one must be made, would not find room."""
    free = shutil.disk_usage(found.root).free
    if not lake.is_local and size_bytes > free:
        what = f"{size_bytes:,} bytes to fetch, and {free:,} are free"
        raise LakeError(what, where=found.root, hint="name another place with --scratch")
