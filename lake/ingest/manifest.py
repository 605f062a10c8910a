"""The manifest: what a plan's first commit records of the next ones, so that any driver finishes it the same way.

A driver can die between two commits, and the segments be gone, or not to be read, when the next one comes. So all
files of the plan are written before its first commit, rows of ``rejects`` and ``segments`` among them, and that commit
names them: what went into one table and what is told of it cannot part. Of two drivers that carry out one plan, what
the first commit says holds for both.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.rules import is_data_path
from ranklake.lake.store.reachability import unreachable
from ranklake.lake.tables.commit import number_of
from ranklake.lake.tables.data_file import DataFile
from ranklake.lake.tables.read import read_some
from ranklake.lake.tables.tables import commit_info, latest

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.store import Lake

AFTER: Final = ("rejects", "segments")
"""Tables that a plan changes after those of its rows, in this order."""
_KEY: Final = "ranklake.files"
_LOOKED_AT: Final = 50
"""Commits that are looked through for the plan's."""


def in_order(files: Iterable[DataFile]) -> dict[str, list[DataFile]]:
    """Return files by table, in the order in which the tables are changed."""
    by_table: dict[str, list[DataFile]] = {}
    for file in files:
        by_table.setdefault(file.table, []).append(file)
    return dict(sorted(by_table.items(), key=lambda item: (item[0] in AFTER, item[0])))


def saying(files: Iterable[DataFile]) -> dict[str, str]:
    """Return metadata for the first commit: all files of the plan."""
    return {_KEY: json.dumps([{**asdict(file), "partition": file.partition.isoformat()} for file in files])}


def foretold(lake: "Lake", plan: "Plan", tables: Iterable[str]) -> list[DataFile] | None:
    """Return all files of a plan of which a commit was made; None where there is none, or it does not say.

    None, too, where one of the files is not there any more, or cannot be the plan's. Raises `LakeUnreachableError`.

    Parameters
    ----------
    tables
        Those that the plan's segments name.
    """
    names = [*sorted(set(tables)), *AFTER]
    for name in names:
        handle = latest(lake, name)
        if handle is None or number_of(handle) < plan.number:
            continue
        said = _said(lake, handle, name, plan)
        if said is not None:
            return said if all(_is_there(lake, file, names) for file in said) else None
    return None


def outcomes(lake: "Lake", files: Iterable[DataFile]) -> list[dict[str, Any]]:
    """Return the rows of ``segments`` that files of a plan hold."""
    mine = [file for file in files if file.table == "segments"]
    some = pa.table(
        {
            "path": [file.path for file in mine],
            "size_bytes": [file.size_bytes for file in mine],
            "num_records": [file.rows for file in mine],
            "date": pa.array([file.partition for file in mine], pa.date32()),
        }
    )
    return [row for _, rows in read_some(lake, contract("segments"), some, verify=True) for row in rows.to_pylist()]


def _said(lake: "Lake", handle: "DeltaTable", table: str, plan: "Plan") -> list[DataFile] | None:
    """Return what the plan's commit of a table says; it is among the last, since no later plan was begun.

    Read by the lake's own client: delta-rs's history keeps Python's other threads waiting for the store.
    """
    newest = handle.version()
    for version in range(newest, max(-1, newest - _LOOKED_AT), -1):
        try:
            commit = commit_info(lake, table, version)
            if commit.get("ranklake.plan") != str(plan.number) or _KEY not in commit:
                continue
            rows = json.loads(commit[_KEY])
            return [DataFile(**{**row, "partition": date.fromisoformat(row["partition"])}) for row in rows]
        except FileNotFoundError:  # older commits went with a checkpoint
            return None
        except OSError as error:
            raise unreachable(lake.uri, error, lake.storage) from None
        except (ValueError, TypeError, KeyError, AttributeError, StopIteration, RecursionError):
            return None
    return None


def _is_there(lake: "Lake", file: DataFile, names: list[str]) -> bool:
    """Say whether a file is where one of the plan's has to be, of its size."""
    if file.table not in names or not is_data_path(file.path, file.partition.isoformat()):
        return False
    try:
        return int(lake.fs.size(lake.path("tables", file.table, file.path))) == file.size_bytes
    except FileNotFoundError:
        return False
    except OSError as error:
        raise unreachable(lake.uri, error, lake.storage) from None
