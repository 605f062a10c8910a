"""The plan of kind ``ingest``: which segments, and how they become rows.

The driver hands a plan's groups to workers and commits: fact tables, then ``rejects``, then ``segments``, and
``ingest_plans`` last. It can die anywhere: before the first commit the next driver carries the plan out again, after it
the next one commits what the first commit names (`ranklake.lake.ingest.manifest`), whatever became of the segments.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import ranklake
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.admission import Candidate, candidates, plan_rows, undisputed
from ranklake.lake.ingest.group import PIECE_BYTES, Compacted, Group
from ranklake.lake.ingest.index_summary import IngestionIndex
from ranklake.lake.ingest.ingestion_index import damaged_when, earlier_cuts, sort_out, standings, unknown
from ranklake.lake.ingest.isolation import TRIES, Careful, attempted
from ranklake.lake.ingest.manifest import foretold, in_order, saying
from ranklake.lake.ingest.manifest import outcomes as outcomes_in
from ranklake.lake.plans.attempts import WHOLE, Attempts
from ranklake.lake.plans.kinds import INGEST
from ranklake.lake.plans.ledger import commit_rows, ledger_row, row_files
from ranklake.lake.plans.plan import LEDGER, Plan, Progress
from ranklake.lake.plans.units import SPOOL, Unit, carry_out, counted
from ranklake.lake.plans.workers import ONE, PIECE_SHARE, Room, Workers
from ranklake.lake.store.limits import Limits
from ranklake.lake.store.planned_segment import PlannedSegment
from ranklake.lake.store.reachability import LakeError
from ranklake.lake.store.writers import NOT_ASKED, Authenticator
from ranklake.lake.tables.commit import LostRaceError, number_of, swap
from ranklake.lake.tables.kept_overlay import keep_overlay
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import ensure_table, latest, refuse_unfit
from ranklake.printable import printable_name
from ranklake.segments.keys import has_key

if TYPE_CHECKING:
    from collections import Counter

    import pyarrow as pa
    from deltalake import DeltaTable

    from ranklake.lake.ingest.spool.listing_cache import Rounds
    from ranklake.lake.ingest.spool.spool import Spool
    from ranklake.lake.store.store import Lake
    from ranklake.lake.tables.data_file import DataFile

SEGMENT_CPU_S = 0.7e-3
ROW_CPU_S = 0.4e-6
"""What a segment and a row cost, about."""
PLAN_SEGMENTS = 20_000
GROUP_ROWS = 2_000_000
GROUP_BYTES = 128 * 2**20
LEAST_GROUP_ROWS = 250_000
"""A task of fewer rows is not worth a file of its own."""


def compose(
    lake: "Lake",
    spool: "Spool",
    number: int,
    waiting: "Counter[str] | None" = None,
    rounds: "Rounds | None" = None,
    held: "dict[str, str] | None" = None,
) -> Plan | None:
    """Return the plan that brings in what is new in the spool, or None where nothing is.

    Raises `ranklake.lake.tables.tables.NewerTableError` where a table knows more than this software, and
    `ranklake.lake.contracts.errors.ContractError` for an overlay that the lake cannot be written under: before anything
    is written.

    Encrypted segments whose key is not at hand are left for another time: no plan names them.

    Parameters
    ----------
    waiting
        Filled with the keys that segments wait for, by id or by prefix, and how many wait for each.
    rounds
        Says which day folders may wait, and takes in what is seen in the others; by default all are listed.
    held
        Filled with why other files stay in the spool unread, by path.
    """
    number_kept = keep_overlay(lake)
    new, known, keyless, kept, unopened = _news(lake, spool, rounds)
    if waiting is not None:
        waiting.clear()
        waiting.update(keyless)
    if held is not None:
        held.clear()
        held.update(spool.passed_over | {printable_name(path): why for path, why in kept.items()})
    if not new:
        return None
    rules, _ = spool.writers.rules()
    some = new[:PLAN_SEGMENTS]
    files = [one.file for one in some]
    recorded = standings(known, files)
    chosen = undisputed(some, recorded)
    tables = sorted({one.file.table for one in chosen})
    body = {
        "spool": spool.address,
        "writer": f"ranklake {ranklake.__version__}",
        "contracts": number_kept,
        "versions": {table: _version(lake, table) for table in [*tables, "rejects"]},
        **lake.config.ingest.saying(),
        "left": len(new) - len(chosen) + unopened,
        "rules": [rule.facts() for rule in rules.values()],
        "segments": list(plan_rows(spool, chosen, earlier_cuts(known, files), recorded, list(rules))),
    }
    return Plan(number, INGEST.name, time.time_ns() // 1000, body)


def _news(
    lake: "Lake", spool: "Spool", rounds: "Rounds | None"
) -> tuple[list[Candidate], "pa.Table", list[str], dict[str, str], int]:
    """Return what is new in the spool, enough for a plan if there is; and remember for later rounds where it was.

    Beside it: what is known of that, with the columns of `ranklake.lake.ingest.index_summary`; the keys that segments
    wait for, one for each; why other files are left alone, by path; and how many segments were not looked at.
    """
    history = IngestionIndex(lake, _segments(lake))
    _, lacking = spool.writers.rules()
    for listing, unopened in spool.listings(history.near, rounds, PLAN_SEGMENTS):
        known = history.of(listing)
        new, closed = unknown(listing, known, damaged_when(lake, known)), unopened
        fit, left_alone = sort_out(new, known, lake.config.ingest, lake.contracts(), spool.is_readable)
        found = candidates(spool, fit)
        needed = {one.key_id for one in found if one.key_id}
        missing = {key_id for key_id in needed if not has_key(lake.config.encryption_key, key_id)}
        ready = [one for one in found if one.refused or (one.key_id not in missing and one.prefix not in lacking)]
        if len(ready) >= PLAN_SEGMENTS:
            break
    # What was not looked at may be news.
    where = {*(item.path for claims in new for item in claims), *closed}
    if rounds is not None and rounds.note(spool.folder_of(path) for path in where):
        rounds.save(lake)
    held = [one.key_id for one in found if not one.refused and one.key_id in missing]
    kept = [one for one in found if not one.refused and one.key_id not in missing and one.prefix in lacking]
    held += [f"of the prefix {one.prefix!r} ({lacking[one.prefix]})" for one in kept if one.prefix is not None]
    return ready, known, held, left_alone, sum(closed.values())


def _segments(lake: "Lake") -> "DeltaTable | None":
    """Return the table that tells what was taken in; None before the first plan.

    Raises `LakeError` where plans were finished and what they brought in is not told, or by newer software.
    """
    handle = latest(lake, "segments")
    if handle is not None:
        return refuse_unfit(handle, contract("segments"))
    if INGEST.name in read(lake, contract(LEDGER), ["kind"])["kind"].to_pylist():
        hint = "restore tables/segments from a backup; else all that is in the spool would be stored again"
        raise LakeError("the table segments is gone", where=lake.uri, hint=hint)
    return None


def _version(lake: "Lake", table: str) -> int:
    found = latest(lake, table)
    return -1 if found is None else refuse_unfit(found, lake.contract(table)).version()


def execute(lake: "Lake", plan: Plan, workers: "Workers", progress: Progress | None = None) -> list[dict[str, Any]]:
    """Carry out an ingest plan, again if need be; return the account of its segments (rows of the table ``segments``).

    Raises `ranklake.lake.tables.commit.LostRaceError` where another driver carries out the same plan and won; whoever
    asked then looks again which plan is unfinished.
    """
    attempts = Attempts(lake, plan.number)
    files = foretold(lake, plan, (row["table"] for row in plan.body["segments"]))
    if files is not None:
        for table, some in in_order(files).items():
            carry_out(_commit_of(plan, table, some), partial(_commit_again, lake, plan, table, some))
        outcomes = outcomes_in(lake, files)
    else:
        outcomes = _carry_out(lake, plan, workers, attempts, progress)
    per_table: dict[str, int] = {}
    for row in outcomes:
        per_table[row["table"]] = per_table.get(row["table"], 0) + row["rows_stored"]
    sums = {name: sum(row[name] for row in outcomes) for name in ("rows_stored", "rows_rejected", "rows_duplicate")}
    recorded = sum(row["rows"] or 0 for row in outcomes)
    row = ledger_row(plan, per_table, segments=len(outcomes), rows_recorded=recorded, **sums)
    unit = Unit("commit", LEDGER, detail=f"plan {plan.number}", reads=(SPOOL,), writes=True)
    carry_out(unit, lambda: commit_rows(lake, LEDGER, [row], plan.number))
    attempts.clear()
    return outcomes


def _carry_out(
    lake: "Lake", plan: Plan, workers: "Workers", attempts: Attempts, progress: Progress | None
) -> list[dict[str, Any]]:
    """Write all files of a plan, then commit them but for the ledger's; return the account of its segments."""
    workers = workers.fitting(expected_cpu_s(plan.body["segments"]))
    authenticator = Authenticator(
        lake.config.encryption_key, lake.config.spool.writers.restored(plan.body.get("rules", []))
    )
    tries = attempts.times_begun(WHOLE)
    # What died often is cut as it was each time, whatever workers there are; in between as if nothing were wrong,
    # since whoever kills drivers for being slow would never see an end.
    is_deadly = tries >= TRIES and tries % 2 == TRIES % 2
    told = _number(lake, "segments") >= plan.number
    groups = list(_groups(lake, plan, ONE if is_deadly else workers.room(), authenticator))
    counter = itertools.count(1)
    done: Callable[[], None] | None = None
    if progress is not None:
        progress(0, len(groups))
        done = lambda: progress(next(counter), len(groups))  # noqa: E731 - one line at its one place of use
    careful = Careful(workers, attempts)

    def write() -> list[Compacted]:
        with attempts.at(WHOLE):
            found = [None] * len(groups) if is_deadly else workers.run(attempted, groups, done, lost=lambda _: None)
            pairs = zip(groups, found, strict=True)
            return [careful.carry_out(group) if one is None else one for group, one in pairs]

    results = carry_out(_writing_of(plan, groups), write)

    files = [file for part in results for file in (*part.files, *part.rejects)]
    outcomes = [{**row, "plan": plan.number, "date": plan.created.date()} for part in results for row in part.outcomes]
    if not told:
        files += row_files(lake, "segments", outcomes, plan.number)
    more = saying(files)
    for table, some in in_order(files).items():
        carry_out(_commit_of(plan, table, some), partial(_commit, lake, plan, table, some, more))
        more = {}
    return outcomes


def _commit(lake: "Lake", plan: Plan, table: str, files: "list[DataFile]", more: dict[str, str]) -> None:
    if not swap(ensure_table(lake, lake.contract(table)), plan.number, add=files, metadata=_metadata(plan) | more):
        # What that one wrote down is true of its rows; what was found here may be another truth by now.
        raise LostRaceError(f"another driver carried out plan {plan.number}", where=lake.uri, hint="run it again")


def _commit_again(lake: "Lake", plan: Plan, table: str, files: "list[DataFile]") -> None:
    swap(ensure_table(lake, lake.contract(table)), plan.number, add=files, metadata=_metadata(plan))


def _commit_of(plan: Plan, table: str, files: "list[DataFile]") -> Unit:
    dates = tuple(file.partition for file in files)
    return Unit("commit", table, dates, f"plan {plan.number}", reads=(SPOOL,), writes=True)


def _writing_of(plan: Plan, groups: list[Group]) -> Unit:
    tables = {group.table for group in groups}
    of = (("segment", len(plan.body["segments"])), ("table", len(tables)), ("task", len(groups)))
    detail = ", ".join(counted(count, noun) for noun, count in of)
    return Unit("write", detail=f"plan {plan.number}: {detail}", reads=(SPOOL,))


def _metadata(plan: Plan) -> dict[str, str]:
    return {"ranklake.plan": str(plan.number), "ranklake.kind": plan.kind}


def expected_cpu_s(segments: list[PlannedSegment]) -> float:
    """Return about what segments of a plan take: a look at each, and their rows."""
    return len(segments) * SEGMENT_CPU_S + float(sum(row["rows"] for row in segments)) * ROW_CPU_S


def _groups(lake: "Lake", plan: Plan, room: Room = ONE, authenticator: Authenticator = NOT_ASKED) -> Iterator[Group]:
    """Cut a plan into tasks: segments of one slot file stay together, so that their repeats meet.

    Each table is cut evenly, into a multiple of the tasks that run at a time where there are rows enough. Another try
    of the plan may cut it otherwise: what a segment's rows come to is the same.
    """
    rejects_done = _number(lake, "rejects") >= plan.number
    by_table = itertools.groupby(plan.body["segments"], key=lambda row: row["table"])
    for table, segments in by_table:
        stored = _number(lake, table) >= plan.number
        for chunk in _chunks(list(segments), room.tasks):
            yield Group(
                lake.address,
                plan.body["spool"],
                lake.storage,
                table,
                chunk,
                plan.number,
                plan.created,
                store_rows=not stored,
                store_rejects=not rejects_done,
                authenticator=authenticator,
                piece_bytes=min(PIECE_BYTES, room.bytes_each // PIECE_SHARE),
                limits=Limits.said(plan.body),
                contracts=plan.body.get("contracts", 0),
                subjects=lake.config.subjects,
                code=lake.overlay.code if lake.overlay is not None else frozenset(),
            )


def _number(lake: "Lake", table: str) -> int:
    found = latest(lake, table)
    return 0 if found is None else number_of(found)


def _chunks(segments: list[PlannedSegment], at_a_time: int) -> Iterator[list[PlannedSegment]]:
    total = sum(segment["rows"] for segment in segments)
    tasks = min(at_a_time * math.ceil(total / (at_a_time * GROUP_ROWS)), max(1, total // LEAST_GROUP_ROWS))
    share = total / max(1, tasks)
    chunk: list[PlannedSegment] = []
    rows = size = 0
    end, stem = share, ""
    for segment in segments:
        here = segment["path"].rpartition("/")[2].rsplit("~", 2)[0]  # without rows and digest: the slot file
        # A segment belongs where most of it lies: so shares stay even, and none is left over.
        full = rows + segment["rows"] / 2 > end or size + segment["bytes"] > GROUP_BYTES
        if chunk and full and here != stem:
            yield chunk
            chunk, size = [], 0
            while rows + segment["rows"] / 2 > end:
                end += share
        chunk.append(segment)
        rows, size, stem = rows + segment["rows"], size + segment["bytes"], here
    yield chunk
