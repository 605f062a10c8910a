"""Carries out a plan of kind ``ingest``: workers write all files, then the driver commits them.

groups ─▶ workers: `ranklake.lake.ingest.task` ─▶ data files ─▶ commits: fact tables, rejects, segments, ingest_plans
            └─ a task that killed its worker ─▶ halves, each in a process that may die ─▶ … ─▶ the segment that kills
                                                                                               ─▶ quarantine/

The driver may die at any point. All files are written before the first commit. The first commit contains the plan's
manifest, which is the list of all these files.

- Without a first commit, the next driver carries out the plan again from the segments.
- After it, the next driver commits the files of the manifest and does not read the segments again.

So the rows and the accounts of these rows always agree. If two drivers carry out the same plan, the driver with the
first commit wins.
"""

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.task import PIECE_BYTES, Group, TaskResult, compact, merge_results, set_aside, slot_files
from ranklake.lake.plans.attempts import WHOLE, Attempts, segments_digest
from ranklake.lake.plans.driver import SPOOL, Unit, carry_out
from ranklake.lake.plans.plan import LEDGER, Plan, Progress, commit_rows, ledger_row, row_files
from ranklake.lake.plans.rules import is_data_path
from ranklake.lake.plans.workers import ONE, PIECE_SHARE, InProcess, InSubprocess, Room, Workers, WorkersError
from ranklake.lake.store.governance import sealed_columns
from ranklake.lake.store.limits import Limits
from ranklake.lake.store.planned_segment import PlannedSegment
from ranklake.lake.store.reachability import unreachable
from ranklake.lake.store.writers import NO_SIGNERS, Authenticator
from ranklake.lake.tables.commit import LostRaceError, number_of, swap
from ranklake.lake.tables.live_files import DataFile
from ranklake.lake.tables.read import read_some
from ranklake.lake.tables.tables import commit_info, ensure_table, latest
from ranklake.printable import counted

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.lake_config import SubjectsSection
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables

SEGMENT_CPU_S: Final = 0.7e-3
ROW_CPU_S: Final = 0.4e-6
"""Rough CPU cost of a segment and of a row."""
GROUP_ROWS: Final = 2_000_000
GROUP_BYTES: Final = 128 * 2**20
LEAST_GROUP_ROWS: Final = 250_000
"""A table is cut into tasks of at least this many rows, since each task writes its own files."""

TRIES: Final = 3
UNSEEN_TRIES: Final = 20
"""Most tries at one slot file during which the driver itself died, for an unknown reason."""
DEADLY: Final = "killed whoever read it, or took all memory, each time"

COMMITTED_LAST: Final = ("rejects", "segments")
"""Tables that are committed after the fact tables, in this order."""
_MANIFEST: Final = "ranklake.files"
_MANIFEST_COMMITS: Final = 50
"""Number of a table's last commits that are searched for the manifest."""


def execute(lake: "Lake", plan: Plan, workers: Workers, progress: Progress | None = None) -> list[dict[str, Any]]:
    """Carry out an ingest plan, or finish one that was begun; return its rows of the table ``segments``.

    Raises `ranklake.lake.tables.commit.LostRaceError` if another driver carried out the same plan first. The caller
    then has to look up the first unfinished plan again.
    """
    attempts = Attempts(lake.store, plan.number)
    files = committed_manifest(lake, plan)
    if files is None:
        segments = _write_and_commit(lake, plan, workers, attempts, progress)
    else:
        for table, table_files in in_commit_order(files).items():
            carry_out(_commit_unit(plan, table, table_files), partial(_swap, lake, plan, table, table_files))
        segments = _segment_rows(lake.tables, files)
    per_table: dict[str, int] = {}
    for row in segments:
        per_table[row["table"]] = per_table.get(row["table"], 0) + row["rows_stored"]
    sums = {name: sum(row[name] for row in segments) for name in ("rows_stored", "rows_rejected", "rows_duplicate")}
    recorded = sum(row["rows"] or 0 for row in segments)
    row = ledger_row(plan, per_table, segments=len(segments), rows_recorded=recorded, **sums)
    unit = Unit("commit", LEDGER, detail=f"plan {plan.number}", reads=(SPOOL,), writes=True)
    carry_out(unit, lambda: commit_rows(lake.tables, LEDGER, [row], plan.number))
    attempts.clear()
    return segments


def _write_and_commit(
    lake: "Lake", plan: Plan, workers: Workers, attempts: Attempts, progress: Progress | None
) -> list[dict[str, Any]]:
    """Write all files of a plan and commit all tables except the ledger; return the plan's rows of ``segments``."""
    workers = workers.fitting(expected_cpu_s(plan.body["segments"]))
    authenticator = Authenticator(
        lake.config.encryption_key, lake.config.spool.writers.from_plan(plan.body.get("rules", []))
    )
    tries = attempts.times_begun(WHOLE)
    # After several deaths, the plan is cut into the same tasks on each try, so that deaths are counted per task. This
    # is slow, so only every other try does it: a scheduler that kills slow drivers would otherwise never let it finish.
    is_deadly = tries >= TRIES and tries % 2 == TRIES % 2
    are_segments_committed = _number(lake.tables, "segments") >= plan.number
    groups = list(_groups(lake, plan, ONE if is_deadly else workers.room(), authenticator))
    counter = itertools.count(1)
    report: Callable[[], None] | None = None
    if progress is not None:
        progress(0, len(groups))
        report = lambda: progress(next(counter), len(groups))  # noqa: E731 - used once, in the next lines
    isolation = Isolation(workers, attempts)

    def write() -> list[TaskResult]:
        with attempts.at(WHOLE):
            results = [None] * len(groups) if is_deadly else workers.run(run_group, groups, report, lost=lambda _: None)
            pairs = zip(groups, results, strict=True)
            return [isolation.run(group) if result is None else result for group, result in pairs]

    result = merge_results(carry_out(_write_unit(plan, groups), write))
    files = [*result.files, *result.rejects]
    segments = [{**row, "plan": plan.number, "date": plan.created.date()} for row in result.outcomes]
    if not are_segments_committed:
        files += row_files(lake.store, "segments", segments, plan.number)
    manifest = {_MANIFEST: json.dumps([{**asdict(file), "partition": file.partition.isoformat()} for file in files])}
    for table, table_files in in_commit_order(files).items():
        carry_out(_commit_unit(plan, table, table_files), partial(_commit, lake, plan, table, table_files, manifest))
        manifest = {}
    return segments


def _commit(lake: "Lake", plan: Plan, table: str, files: list[DataFile], manifest: dict[str, str]) -> None:
    if not _swap(lake, plan, table, files, manifest):
        # The other driver's rows of `segments` describe its files. This driver may have read other bytes since.
        raise LostRaceError(f"another driver carried out plan {plan.number}", where=lake.uri, hint="run it again")


def _swap(lake: "Lake", plan: Plan, table: str, files: list[DataFile], manifest: dict[str, str] | None = None) -> bool:
    metadata = {"ranklake.plan": str(plan.number), "ranklake.kind": plan.kind, **(manifest or {})}
    return swap(ensure_table(lake.tables, lake.contract(table)), plan.number, add=files, metadata=metadata)


def _commit_unit(plan: Plan, table: str, files: list[DataFile]) -> Unit:
    dates = tuple(file.partition for file in files)
    return Unit("commit", table, dates, f"plan {plan.number}", reads=(SPOOL,), writes=True)


def _write_unit(plan: Plan, groups: list[Group]) -> Unit:
    tables = {group.table for group in groups}
    counts = (("segment", len(plan.body["segments"])), ("table", len(tables)), ("task", len(groups)))
    detail = ", ".join(counted(count, noun) for noun, count in counts)
    return Unit("write", detail=f"plan {plan.number}: {detail}", reads=(SPOOL,))


def expected_cpu_s(segments: list[PlannedSegment]) -> float:
    """Estimate the CPU seconds that ingesting some segments takes."""
    return len(segments) * SEGMENT_CPU_S + float(sum(row["rows"] for row in segments)) * ROW_CPU_S


def _groups(lake: "Lake", plan: Plan, room: Room = ONE, authenticator: Authenticator = NO_SIGNERS) -> Iterator[Group]:
    """Cut a plan into tasks. Segments of one slot file stay in one task, so that repeated rows are found.

    Each table is cut evenly. If it has enough rows, the number of tasks is a multiple of those that run in parallel.
    Another try of the plan may cut it differently; the stored rows are the same.
    """
    are_rejects_committed = _number(lake.tables, "rejects") >= plan.number
    by_table = itertools.groupby(plan.body["segments"], key=lambda row: row["table"])
    for table, segments in by_table:
        is_committed, subjects = _number(lake.tables, table) >= plan.number, subjects_of(lake, table)
        for chunk in _chunks(list(segments), room.tasks):
            yield Group(
                lake.store.address,
                plan.body["spool"],
                lake.store.storage,
                table,
                chunk,
                plan.number,
                plan.created,
                store_rows=not is_committed,
                store_rejects=not are_rejects_committed,
                authenticator=authenticator,
                piece_bytes=min(PIECE_BYTES, room.bytes_each // PIECE_SHARE),
                limits=Limits.from_plan(plan.body),
                contracts=plan.body.get("contracts", 0),
                subjects=subjects,
            )


def subjects_of(lake: "Lake", table: str) -> "SubjectsSection | None":
    """Return which columns are stored under keys of persons; None if the table has no such columns and never had."""
    section, contract = lake.config.subjects, lake.contracts().get(table)
    return section if section.columns or (contract is not None and sealed_columns(lake.store, contract)) else None


def _number(tables: "Tables", table: str) -> int:
    handle = latest(tables, table)
    return 0 if handle is None else number_of(handle)


def _chunks(segments: list[PlannedSegment], parallel_tasks: int) -> Iterator[list[PlannedSegment]]:
    total = sum(segment["rows"] for segment in segments)
    tasks = min(parallel_tasks * math.ceil(total / (parallel_tasks * GROUP_ROWS)), max(1, total // LEAST_GROUP_ROWS))
    share = total / max(1, tasks)
    chunk: list[PlannedSegment] = []
    rows = size = 0
    end, last_slot_file = share, ""
    for segment in segments:
        slot_file = segment["path"].rpartition("/")[2].rsplit("~", 2)[0]  # the name without rows and digest
        # A segment goes into the chunk that has more than half of its rows, so that chunks are of equal size.
        is_full = rows + segment["rows"] / 2 > end or size + segment["bytes"] > GROUP_BYTES
        if chunk and is_full and slot_file != last_slot_file:
            yield chunk
            chunk, size = [], 0
            while rows + segment["rows"] / 2 > end:
                end += share
        chunk.append(segment)
        rows, size, last_slot_file = rows + segment["rows"], size + segment["bytes"], slot_file
    yield chunk


def in_commit_order(files: Iterable[DataFile]) -> dict[str, list[DataFile]]:
    """Return the files by table, in the order in which the tables are committed."""
    by_table: dict[str, list[DataFile]] = {}
    for file in files:
        by_table.setdefault(file.table, []).append(file)
    return dict(sorted(by_table.items(), key=lambda item: (item[0] in COMMITTED_LAST, item[0])))


def committed_manifest(lake: "Lake", plan: Plan) -> list[DataFile] | None:
    """Return all files of a plan from the manifest in its first commit; None if nothing of the plan is committed.

    None, too, if one of the files is missing or is no data file of the plan. Raises `LakeUnreachableError`.
    """
    tables = [*sorted({row["table"] for row in plan.body["segments"]}), *COMMITTED_LAST]
    for table in tables:
        handle = latest(lake.tables, table)
        if handle is None or number_of(handle) < plan.number:
            continue
        files = _manifest_in(lake.store, handle, table, plan)
        if files is not None:
            return files if all(_exists(lake.store, file, tables) for file in files) else None
    return None


def _segment_rows(tables: "Tables", files: Iterable[DataFile]) -> list[dict[str, Any]]:
    """Read the rows of ``segments`` from the files of a plan."""
    segment_files = [file for file in files if file.table == "segments"]
    live = pa.table(
        {
            "path": [file.path for file in segment_files],
            "size_bytes": [file.size_bytes for file in segment_files],
            "num_records": [file.rows for file in segment_files],
            "date": pa.array([file.partition for file in segment_files], pa.date32()),
        }
    )
    return [row for _, rows in read_some(tables, contract("segments"), live, verify=True) for row in rows.to_pylist()]


def _manifest_in(store: "Store", handle: "DeltaTable", table: str, plan: Plan) -> list[DataFile] | None:
    """Find the plan's manifest in a table's last commits; None if there is none. No later plan has committed yet.

    The log is read with the lake's own client, since delta-rs blocks all Python threads while it reads the history.
    """
    newest = handle.version()
    for version in range(newest, max(-1, newest - _MANIFEST_COMMITS), -1):
        try:
            commit = commit_info(store, table, version)
            if commit.get("ranklake.plan") != str(plan.number) or _MANIFEST not in commit:
                continue
            rows = json.loads(commit[_MANIFEST])
            return [DataFile(**{**row, "partition": date.fromisoformat(row["partition"])}) for row in rows]
        except FileNotFoundError:  # older commits were removed after a checkpoint
            return None
        except OSError as error:
            raise unreachable(store.uri, error, store.storage) from None
        except (ValueError, TypeError, KeyError, AttributeError, StopIteration, RecursionError):
            return None
    return None


def _exists(store: "Store", file: DataFile, tables: list[str]) -> bool:
    """Whether a file of the manifest is a data file of the plan's tables and exists with its size."""
    if file.table not in tables or not is_data_path(file.path, file.partition.isoformat()):
        return False
    try:
        return int(store.fs.size(store.path("tables", file.table, file.path))) == file.size_bytes
    except FileNotFoundError:
        return False
    except OSError as error:
        raise unreachable(store.uri, error, store.storage) from None


class Isolation:
    """Retries tasks that killed their worker, in halves, until the segments that kill workers are found.

    Each try is marked in the lake (`ranklake.lake.plans.attempts`), so that the next driver continues if one dies.

    Parameters
    ----------
    workers
        Workers of a cluster run the tries. Without a cluster, a process is started for each try.
    """

    def __init__(self, workers: Workers, attempts: Attempts) -> None:
        self._workers = InSubprocess() if isinstance(workers, InProcess) else workers
        self._attempts = attempts

    def run(self, group: Group) -> TaskResult:
        """Carry out a task and set its deadly segments aside. Raises errors that are not caused by segments."""
        files = slot_files(group.segments)
        if len(files) > 1:
            digest = segments_digest(group.segments)
            was_tried = self._attempts.times_begun(digest) or self._attempts.times_died(digest)
            result = None if was_tried else self._run_group(group)
            if result is not None:
                return result
            middle = len(files) // 2
            halves = [[row for file in half for row in file] for half in (files[:middle], files[middle:])]
            return merge_results([self.run(replace(group, segments=half)) for half in halves])
        if (result := self._try_often(group)) is not None:
            return result
        # Segments of one slot file repeat rows of each other, so the good ones are ingested in one task.
        good = [row for row in group.segments if len(group.segments) > 1 and self._is_harmless(group, row)]
        bad = [row for row in group.segments if row not in good]
        self._check_workers(group)
        if not bad or not good:
            return set_aside(group, DEADLY)
        return merge_results([self.run(replace(group, segments=good)), set_aside(replace(group, segments=bad), DEADLY)])

    def _is_harmless(self, group: Group, row: PlannedSegment) -> bool:
        return self._try_often(replace(group, segments=[row])) is not None

    def _try_often(self, group: Group) -> TaskResult | None:
        """Try a task up to `TRIES` times; return None if it killed its worker each time."""
        digest = segments_digest(group.segments)
        while self._attempts.times_died(digest) < TRIES and self._attempts.times_begun(digest) < UNSEEN_TRIES:
            result = self._run_group(group)
            if result is not None:
                return result
        return None

    def _run_group(self, group: Group) -> TaskResult | None:
        digest = segments_digest(group.segments)
        with self._attempts.at(digest):
            (result,) = self._workers.run(run_group, [group], lost=_no_result)
            if result is None:
                self._attempts.record_death(digest)
        return result

    def _check_workers(self, group: Group) -> None:
        """Raise `WorkersError` if workers die even at an empty task: then no segment is the cause."""
        (result,) = self._workers.run(run_group, [replace(group, segments=[])], lost=_no_result)
        if result is None:
            raise WorkersError("workers die at an empty task", hint="look at their memory and logs; run it again")


def run_group(group: Group) -> TaskResult | None:
    """Carry out a task. The return type has None for tasks that kill their worker, see `Workers.run`."""
    return compact(group)


def _no_result(_: Group) -> TaskResult | None:
    return None
