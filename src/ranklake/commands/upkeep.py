"""``ranklake upkeep``."""

from dataclasses import asdict
from datetime import timedelta

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import dask_option, json_option, lake_option
from ranklake.context import Context
from ranklake.lake.ingest.maintenance.run import UpkeepResult
from ranklake.lake.ingest.maintenance.run import upkeep as run_upkeep
from ranklake.lake.ingest.maintenance.vacuum import GRACE
from ranklake.lake.plans.workers import InProcess
from ranklake.retention.plans.purge import PurgeResult, expired_names, purge_due
from ranklake.retention.proposals.identities import account
from ranklake.views.json_output import show_json
from ranklake.views.progress import progress_bar
from ranklake.views.tell import tell, tell_damaged

_GRACE_HOURS = int(GRACE / timedelta(hours=1))


@click.command()
@lake_option
@dask_option
@click.option(
    "--grace-hours",
    default=_GRACE_HOURS,
    show_default=True,
    type=click.IntRange(1, _GRACE_HOURS),
    help="Hours to keep a file after its last use. No query or ingest may take longer.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@click.option("--scrub", is_flag=True, help="Also read every data file and compare it with its digest.")
@json_option
@with_context
def upkeep(context: Context, grace_hours: int, *, dry_run: bool, scrub: bool, as_json: bool) -> int:
    """Compact small files, shorten the logs and vacuum unreferenced files.

    Also deletes what retention plans kept until now, and archived rows that were brought back until a day that is over.
    Changes no row. Run it once a day or more often, beside ingest and queries. If it is killed, the next run continues.
    It verifies the files that it merges; with --scrub (weekly, for example), all. Signs the head of the audit trail
    where [audit] anchor_every_h says so. Exits 1 if data files are damaged, or if that fails.
    """
    lake = context.open_lake()
    grace = timedelta(hours=grace_hours)
    if dry_run:
        done = run_upkeep(lake, InProcess(), grace=grace, dry_run=True, with_scrub=scrub)
    else:
        with context.workers() as workers, progress_bar("upkeep") as progress:
            done = run_upkeep(lake, workers, grace=grace, with_scrub=scrub, progress=progress)
    over = purge_due(lake, account(lake), dry_run=dry_run)
    expired = expired_names(lake, dry_run=dry_run)
    if as_json:
        show_json({**asdict(done), "dry_run": dry_run, "retention": {**over.plain(), "expired": expired}})
    else:
        _tell(done, over, expired, "would be " if dry_run else "")
    tell_damaged(done.damaged)
    if done.anchor_fault:
        tell(f"the audit trail was not anchored: {done.anchor_fault}", err=True)
    return 1 if done.damaged or done.anchor_fault else 0


def _tell(done: UpkeepResult, over: PurgeResult, expired: list[str], would: str) -> None:
    purged = ", ".join(f"{count:,} {what}" for what, count in done.purged.items())
    lines = [
        (done.files_before, f"{done.files_before:,} small files {would}merged into {done.files_after:,}"),
        (done.followed, f"contracts {would}followed: {', '.join(done.followed)}"),
        (done.checkpoints, f"logs {would}shortened: {', '.join(done.checkpoints)}"),
        (done.purged, f"files {would}purged: {purged}; {done.purged_bytes:,} bytes"),
        (over.plans, f"what retention plans kept {would}deleted: {', '.join(over.plans)}"),
        (expired, f"rehydrated rows {would}deleted, whose day is over: {', '.join(expired)}"),
    ]
    lines += [(True, line) for line in over.left]
    lines += [(True, f"{name} keeps what it took: {why}") for name, why in over.waiting]
    if done.anchored is not None:
        lines.append((True, f"audit trail of {done.anchored:,} rows anchored"))
    if done.scrubbed is not None:
        scrub = done.scrubbed
        line = f"{scrub.files:,} files, {scrub.size_bytes:,} bytes scrubbed: {len(scrub.damaged):,} damaged"
        lines.insert(0, (True, line))
    said = [line for found, line in lines if found]
    tell(*said or ["nothing to do"])
