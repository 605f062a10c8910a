"""``ranklake ingest``, ``rollup``, ``upkeep`` and ``pipeline``: run stages once."""

from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import dask_option, json_option, lake_option, new_option, prices_option, spool_option
from ranklake.context import Context
from ranklake.lake.ingest.maintenance.run import UpkeepResult
from ranklake.lake.ingest.maintenance.run import upkeep as run_upkeep
from ranklake.lake.ingest.maintenance.vacuum import GRACE
from ranklake.lake.ingest.run import KEEP_DAYS
from ranklake.lake.ingest.run import ingest as run_ingest
from ranklake.lake.ingest.spool.gate import is_newer
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.rollups.runner import RollupResult, run_rollups
from ranklake.pipeline.alerts.stage import raise_if_lost
from ranklake.pipeline.auditing import audit_ingest, audit_upkeep
from ranklake.pipeline.calls import damage_in, refuse_failed_steps, unreadable_in
from ranklake.pipeline.findings import FindingsError
from ranklake.pipeline.headlines import headline
from ranklake.pipeline.stages import pipeline_once
from ranklake.printable import counted
from ranklake.retention.plans.purge import PurgeResult, expired_names, purge_due
from ranklake.retention.proposals.identities import account
from ranklake.segments.envelope import MissingKeyError
from ranklake.segments.keys import read_keyring
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import progress_bar, tell, tell_broken, tell_damaged


@click.command()
@lake_option
@spool_option
@dask_option
@click.option(
    "--keep-days",
    default=KEEP_DAYS,
    show_default=True,
    type=click.IntRange(min=0),
    help="Days to keep ingested segments in the spool.",
)
@new_option
@json_option
@with_context
def ingest(context: Context, keep_days: int, *, is_new: bool, as_json: bool) -> int:
    """Bring new segments from the spool into the lake, exactly once.

    Creates the lake in an empty location. It can run repeatedly and on several machines at once: it never stores a row
    twice, and first finishes an interrupted run. Exits 1 if a segment could not be read, if encrypted segments wait for
    a key that is not available, or if files to be merged are damaged.
    """
    lake = replace(context, is_new=is_new).create_lake()
    with context.workers() as workers, progress_bar("ingest") as progress:
        result = run_ingest(lake, context.spool(), workers, keep_days=keep_days, progress=progress)
    audit_ingest(lake, result.purged, keep_days)
    if as_json:
        show_json(result)
    elif not result.plans:
        tell("nothing new in the spool; nothing committed")
    else:
        plans = (
            f"plan {result.plans[0]}" if len(result.plans) == 1 else f"plans {result.plans[0]} to {result.plans[-1]}"
        )
        tell(
            f"{plans}: {result.segments} segments, {result.rows_stored:,} rows stored, "
            f"{result.rows_rejected:,} quarantined, {result.rows_duplicate:,} seen before, in {result.elapsed_s:.1f} s"
        )
        if result.unreadable:
            why = "SELECT uri_name, unreadable FROM segments WHERE unreadable IS NOT NULL"
            tell(f'{result.unreadable} segments could not be read; see why: ranklake sql "{why}"')
        for reason, count in result.refused.items():
            tell(f"{count} of them refused: {reason}", err=True)
    if result.moved and not as_json:
        tell(f"{result.moved} files moved from the fallback spool")
    for why, count in result.held.items():
        hint = "upgrade ranklake, or its contracts, to take them in; " if is_newer(why) else ""
        tell(f"{count} files of the spool left alone ({why}); {hint}the first: {result.held_first[why]}", err=True)
    for key_id, count in result.waiting.items():
        if key_id.startswith("of the prefix"):
            tell(f"{count} segments wait for the keys {key_id}", err=True)
            continue
        hint = "name its source by encryption_key under [capture] in ranklake.toml"
        tell(
            f"{count} segments wait for the key {key_id}; {_keyring_fault(lake.config.encryption_key) or hint}",
            err=True,
        )
    tell_damaged(result.damaged)
    is_unread = result.unreadable > sum(result.refused.values())
    return 1 if result.waiting or result.damaged or is_unread else 0


def _keyring_fault(source: str) -> str:
    """Return the fault of a keyring as a whole; empty if there is none."""
    try:
        if source:
            read_keyring(source)
    except MissingKeyError as error:
        return str(error)
    return "the keyring does not have it" if source else ""


_COLUMNS = (TextColumn("rollup", 14), *numbers(("partitions", "rows"), 12), *numbers(("version", "seconds"), 10))


@click.command()
@click.argument("names", metavar="[NAME]…", nargs=-1)
@click.option("--full", is_flag=True, help="Recompute everything; the result is the same.")
@prices_option
@lake_option
@json_option
@with_context
def rollup(context: Context, names: tuple[str, ...], *, full: bool, as_json: bool) -> int:
    """Recompute the rollups whose inputs changed: all, or ROLLUPs and the rollups they read.

    Rollups of a partition that a check holds back are not updated, and stay due.

    Exits 1 if input data files are damaged; rollups that need them stay due.
    """
    lake = context.open_lake()
    with context.workers() as workers, progress_bar("rollup") as progress:
        results = run_rollups(lake, names or None, workers=workers, progress=progress, full=full)
    if as_json:
        show_json(results)
    else:
        _print(results)
    kept_back = sorted({place for result in results for place in result.kept_back})
    for table, day in kept_back:
        tell(f"{table} {day} is held back by a check: what needs it stays as it is; see 'ranklake quality held'")
    damaged = dict.fromkeys(one for result in results for one in result.damaged)
    tell_damaged(damaged)
    return 1 if damaged else 0


def _print(results: list[RollupResult]) -> None:
    written = [result for result in results if result.partitions]
    if not written:
        changed = "" if any(result.damaged for result in results) else "nothing changed; "
        tell(f"{changed}nothing was committed")
        return
    rows = [
        (
            result.name,
            f"{len(result.partitions):,}",
            f"{result.rows:,}",
            "" if result.version is None else f"{result.version:,}",
            f"{result.seconds:.2f}",
        )
        for result in results
    ]
    tell(*table_lines(_COLUMNS, rows, gap=""))


_GRACE_HOURS = int(GRACE / timedelta(hours=1))


@click.command()
@lake_option
@dask_option
@click.option(
    "--grace-hours",
    default=_GRACE_HOURS,
    show_default=True,
    type=click.IntRange(1, _GRACE_HOURS),
    help="Hours to keep unreferenced files. No query or ingest may take longer.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@click.option("--scrub", is_flag=True, help="Also read every data file and compare it with its digest.")
@json_option
@with_context
def upkeep(context: Context, grace_hours: int, *, dry_run: bool, scrub: bool, as_json: bool) -> int:
    """Compact small files, truncate logs and vacuum unreferenced files.

    Also deletes bytes of retention plans whose grace period is over, and restored archived rows whose last day has
    passed. Changes no row. Run it at least once a day; ingest and queries may run meanwhile. If it is killed, the next
    run continues. It verifies the files that it merges, or all with --scrub (weekly, for example). Signs the head of
    the audit log if [audit] anchor_every_h is set. Exits 1 if data files are damaged, or if signing fails.
    """
    lake = context.open_lake()
    grace = timedelta(hours=grace_hours)
    if dry_run:
        result = run_upkeep(lake, InProcess(), grace=grace, dry_run=True, with_scrub=scrub)
    else:
        with context.workers() as workers, progress_bar("upkeep") as progress:
            result = run_upkeep(lake, workers, grace=grace, with_scrub=scrub, progress=progress)
        audit_upkeep(context, lake, result)
    purged = purge_due(lake, account(lake), dry_run=dry_run)
    expired = expired_names(lake.tables, dry_run=dry_run)
    if as_json:
        show_json({**asdict(result), "dry_run": dry_run, "retention": {**purged.plain(), "expired": expired}})
    else:
        _print_upkeep(result, purged, expired, "would be " if dry_run else "")
    tell_damaged(result.damaged)
    if result.anchor_fault:
        tell(f"the audit log was not anchored: {result.anchor_fault}", err=True)
    return 1 if result.damaged or result.anchor_fault else 0


def _print_upkeep(done: UpkeepResult, purged: PurgeResult, expired: list[str], would: str) -> None:
    counts = ", ".join(f"{count:,} {kind}" for kind, count in done.purged.items())
    lines = [
        (done.files_before, f"{done.files_before:,} small files {would}merged into {done.files_after:,}"),
        (done.followed, f"contracts {would}followed: {', '.join(done.followed)}"),
        (done.checkpoints, f"logs {would}shortened: {', '.join(done.checkpoints)}"),
        (done.purged, f"files {would}purged: {counts}; {done.purged_bytes:,} bytes"),
        (purged.plans, f"what retention plans kept {would}deleted: {', '.join(purged.plans)}"),
        (purged.copies, f"copied artifacts deleted that no row names any more: {counted(purged.copies, 'file')}"),
        (expired, f"rehydrated rows {would}deleted, whose day is over: {', '.join(expired)}"),
    ]
    lines += [(True, line) for line in purged.left]
    lines += [(True, f"{name} keeps what it took: {reason}") for name, reason in purged.waiting]
    if done.anchored is not None:
        lines.append((True, f"audit log of {done.anchored:,} rows anchored"))
    if done.scrubbed is not None:
        scrub = done.scrubbed
        line = f"{scrub.files:,} files, {scrub.size_bytes:,} bytes scrubbed: {len(scrub.damaged):,} damaged"
        lines.insert(0, (True, line))
    shown = [line for is_shown, line in lines if is_shown]
    tell(*shown or ["nothing to do"])


@click.command()
@lake_option
@spool_option
@dask_option
@new_option
@json_option
@with_context
def pipeline(context: Context, *, is_new: bool, as_json: bool) -> int:
    """Ingest, check facts, roll up, check rollups and refresh the catalog, once, in order.

    Also runs playbooks and sends alerts, if [playbooks] and [alerts] are configured. Exits 1 if a check
    failed, a segment could not be read, data files are damaged, a step of a playbook failed, a receiver did not take a
    message, or a section of the report in [report] out cannot be made.
    """
    results = pipeline_once(replace(context, is_new=is_new))
    unreadable = unreadable_in(results["ingest"])
    if as_json:
        show_json(results)
    else:
        ingested, checked = results["ingest"], results["check"]
        written = sum(len(result["partitions"]) for result in results["rollup"]["rollups"])
        tell(f"ingest  {ingested['rows_stored']:,} rows stored, {ingested['rows_rejected']:,} quarantined")
        outcomes = ", ".join(f"{count:,} {status}" for status, count in checked["checks"].items())
        if unreadable:
            line = f"{counted(unreadable, 'segment')} could not be read; 'ranklake status' says why"
            tell(f"        {line}", err=True)
        for reason, count in ingested["refused"].items():
            tell(f"        {count} segments refused: {reason}", err=True)
        tell(f"check   {outcomes or 'nothing new'}")
        tell(f"rollup  {written:,} partitions written")
        if "playbooks" in results:
            tell(f"steps   {', '.join(headline('playbooks', results['playbooks']))}")
        if "alerts" in results:
            tell(f"alerts  {', '.join(headline('alerts', results['alerts']))}")
    damages, broken = damage_in(results), results.get("report", {}).get("broken")
    is_followed = all([_print_faults(refuse_failed_steps, results.get("playbooks", {})),
                       _print_faults(raise_if_lost, results.get("alerts", {}))])  # fmt: skip
    tell_damaged(damages)
    if broken:
        tell_broken(results["report"])
    return 0 if results["check"]["passed"] and not damages and not broken and not unreadable and is_followed else 1


def _print_faults(refuse: Callable[[dict[str, Any]], object], done: dict[str, Any]) -> bool:
    """Print a stage's faults; return whether there are none."""
    try:
        refuse(done)
    except FindingsError as error:
        tell(error, *error.others, err=True)
        return False
    return True
