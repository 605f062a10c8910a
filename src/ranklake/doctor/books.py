"""Probes of records in the lake and of its backups: table logs, the next plan, the audit log, removals of rows."""

import re
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ranklake.context import Context
from ranklake.doctor.examination import Finding, Patient, alerted, failed, ok, skipped, warning
from ranklake.errors import RanklakeError
from ranklake.lake.audit import clock
from ranklake.lake.audit.chain import head_records
from ranklake.lake.audit.proof import first_row_of, prove
from ranklake.lake.ingest.status.reconciliation import lost_tables
from ranklake.lake.migrations.drift import drift as drifted
from ranklake.lake.plans.plan import last_finished, read_plan
from ranklake.lake.plans.verification import authorise
from ranklake.lake.store.lake_config import SIGNED, UNSIGNED
from ranklake.lake.store.ssh_signatures import load_signers, require_tool
from ranklake.lake.store.store import Store
from ranklake.printable import counted, printable
from ranklake.redaction.redact import redact_uri
from ranklake.retention.backup.history import last_drill
from ranklake.retention.backup.place import lake_of, newest_backup_time, unlock
from ranklake.retention.grants.grant import awaiting_review, register
from ranklake.retention.plans.removals import removal_faults
from ranklake.retention.proposals.approvals import UNSIGNED_NOTE
from ranklake.retention.proposals.examination import examine
from ranklake.retention.proposals.identities import owner
from ranklake.retention.report.facts import waiting as waiting_proposals

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake


_REMEDY = "schedule 'ranklake backup', or the deployment of this name; look why it does not run, or fails"


def backup(patient: Patient) -> Iterator[Finding]:
    """Check the age of the newest backup in each place of ``[backup] to``, and the result of the last drill."""
    yield from _places(patient, has_drills=True)


def backup_ages(patient: Patient) -> Iterator[Finding]:
    """Check the age of the newest backup in each place."""
    yield from _places(patient, has_drills=False)


def _places(patient: Patient, *, has_drills: bool) -> Iterator[Finding]:
    context = Context.of(patient.config)
    section = context.lake_config.backup
    if not section.to:
        yield skipped("nothing is backed up: name a place as to under [backup]", "see docs/disaster-recovery.md")
    for uri in section.to:
        try:
            yield from _of_place(context, uri, timedelta(hours=section.every_h), has_drills=has_drills)
        except (RanklakeError, OSError) as error:  # a fault of one place must not hide the others
            reason = error.what if isinstance(error, RanklakeError) else type(error).__name__
            yield alerted(
                failed(f"{redact_uri(uri)}: {reason}", "run 'ranklake backup' to it, or look after its store")
            )


def _of_place(context: Context, uri: str, every: timedelta, *, has_drills: bool) -> Iterator[Finding]:
    place, shown = unlock(context.place(uri), context.lake_config.backup.key), redact_uri(uri)
    if lake_of(place) != owner(context.open_lake().store):
        yield alerted(failed(f"{shown}: the backups are of another lake", "name a place of its own under [backup]"))
        return
    backup_time = newest_backup_time(place)
    if backup_time is None:
        yield alerted(warning(f"{shown}: no backup is there", _REMEDY))
        return
    age = datetime.now(UTC) - backup_time
    message = f"{shown}: the newest backup is {age.total_seconds() / 3600:,.1f} h old"
    yield ok(message) if age <= 2 * every else alerted(warning(f"overdue: {message}", _REMEDY))
    if has_drills:
        yield _drill(place, shown)


def _drill(place: Store, shown: str) -> Finding:
    drill = last_drill(place)
    if drill is None:
        return warning(f"{shown}: it was never restored for a try", f"run 'ranklake drill {shown}'")
    if drill["faults"]:
        return failed(f"{shown}: the last drill found {drill['faults'][0]}", f"run 'ranklake drill {shown}'")
    return ok(f"{shown}: drilled on {drill['started'][:10]}, RTO {drill['rto_s']:,.1f} s")


SOON: Final = timedelta(days=14)
"""Keys that expire within this time are reported."""

RECENT: Final = timedelta(days=2)
"""Age up to which each round of alerts verifies rows of the audit log."""

COMMITS: Final = 500
"""Number of the latest commits of each table's log that are checked."""


_PLAN: Final = re.compile(r"(?P<number>[0-9]{10})\.json")


def logs(patient: Patient) -> Iterator[Finding]:
    """Check that each table has its Delta log: without it readers see no rows, and a write would begin a new log."""
    lake = Context.of(patient.config).open_lake()
    lost = lost_tables(lake)
    for table in lost:
        message = f"table {printable(table)} has lost its log: to who reads it, it is empty"
        yield failed(
            message, f"restore {lake.store.table_uri(table)}/_delta_log from a backup before anything is written there"
        )
    if not lost:
        yield ok(f"{counted(len(_names(lake.store, 'tables')), 'table')} with their logs")


def plans(patient: Patient) -> Iterator[Finding]:
    """Check whether an unfinished plan waits, and can be carried out."""
    lake = Context.of(patient.config).open_lake()
    finished = last_finished(lake.tables)
    yield from _strange_plans(lake.store, finished + 1)
    plan = read_plan(lake.store, finished + 1)
    if plan is None:
        yield ok(f"all {finished:,} are finished")
        return
    authorise(lake, plan)
    age_s = (datetime.now(UTC) - plan.created).total_seconds()
    message = f"plan {plan.number} ({plan.kind}), written {age_s:,.0f} s ago, is not finished"
    if age_s > patient.overdue_s:
        yield warning(message, "'ranklake ingest' finishes it, or says why not")
    else:
        yield ok(f"{message}: somebody is at it")


def _strange_plans(store: "Store", following: int) -> Iterator[Finding]:
    """Yield files in the plans' folder that are not plans, or have numbers beyond the next plan.

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
    """Return the names in a folder of the lake; empty if the folder does not exist."""
    try:
        result = store.fs.ls(store.path(*folder), detail=False)
    except FileNotFoundError:
        return []
    return [name for path in result if (name := path.rstrip("/").rpartition("/")[2])]


def audit(patient: Patient) -> Iterator[Finding]:
    """Check that the audit log is sound, and that its witness agrees and accepts new heads."""
    lake = Context.of(patient.config).open_lake()
    for place in head_records(lake):
        if reason := place.write_obstacle():
            yield failed(
                f"{place.where} takes no heads: {reason}", "give who writes the lake the right to add files there"
            )
    recent = [finding for finding in recent_audit(patient) if finding.is_wrong]
    yield from map(alerted, recent) if recent else _trail(lake)


def recent_audit(patient: Patient) -> Iterator[Finding]:
    """Verify the audit log's latest rows, its count and its heads: cheap enough for each round."""
    lake = Context.of(patient.config).open_lake()
    yield from _trail(lake, first_row_of(lake.tables, (datetime.now(UTC) - RECENT).date()))


def _trail(lake: "Lake", since: int = 0) -> Iterator[Finding]:
    proof = prove(lake, since)
    if proof.whole:
        yield ok(f"whole: {counted(proof.rows, 'row')}")
    else:
        hint = "find out who did it and restore the table from a backup; 'ranklake audit resume' goes on after a loss"
        yield failed(f"the audit log is broken: {proof.why}", hint)


def grants(patient: Patient) -> Iterator[Finding]:
    """Check that break-glass grants were reviewed."""
    now = clock.now()
    known = list(register(Context.of(patient.config).open_lake()).values())
    waiting = [grant for grant in known if grant.awaits_review()]
    for item in waiting:
        again = awaiting_review(waiting, item.to)[0] is not item
        more = ", nor one that the same person took before" if again else ""
        message = f"role {item.role} was taken without approval, and nobody reviewed it{more}: {item.name}"
        yield (failed if again else warning)(message, f"ranklake grants review {item.name} --by NAME --reason TEXT")
    if not waiting:
        yield ok(f"{counted(sum(not grant.why_not(now) for grant in known), 'grant')} in force")


def proposals(patient: Patient) -> Iterator[Finding]:
    """List proposals that wait for a person, since when, and the command for each."""
    now, most = clock.now(), timedelta(hours=patient.config.health.proposal_h)
    waits = waiting_proposals(Context.of(patient.config).open_lake())
    for item in waits:
        since = "" if item.since is None else f", since {item.since:%Y-%m-%d %H:%M} UTC"
        message = f"{item.noun} {item.name} waits for a person{since}: {item.lacking}"
        is_late = item.since is not None and now - item.since > most
        yield warning(message, item.next_step) if is_late else ok(f"{message}; {item.next_step}")
    if not waits:
        yield ok("none waits for a person")


def approvals(patient: Patient) -> Iterator[Finding]:
    """Report how names of approvers are checked, invalid approvals, and keys that are or will soon be invalid."""
    config = Context.of(patient.config)
    lake, section = config.open_lake(), config.lake_config.approvals
    result = examine(lake)
    hint = "docs/approvals.md says what each means; 'ranklake audit show' shows who wrote the row"
    yield from (failed(fault, hint) for fault in result.faults)
    yield from (warning(note, hint) for note in result.notes)
    if section.mode != SIGNED:
        if not result.faults and not result.notes:
            yield skipped(UNSIGNED_NOTE) if section.mode == UNSIGNED else ok("a helper says who approves")
        return
    if not result.faults:
        yield ok(f"signed: {counted(result.signed, 'step')} hold")
    yield from map(alerted, signers(patient))


def signers(patient: Patient) -> Iterator[Finding]:
    """Yield approvers' keys that are or will soon be invalid."""
    section = Context.of(patient.config).lake_config.approvals
    if section.mode != SIGNED:
        yield skipped("approvals are not signed by keys")
        return
    require_tool()
    keys, now = load_signers(section.allowed_signers).keys, datetime.now(UTC)
    expiring = [key for key in keys if key.why_not(now) or key.why_not(now + SOON)]
    if Path(section.allowed_signers).stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield warning(f"others may write {section.allowed_signers}", f"chmod go-w {section.allowed_signers}")
    if expiring:
        message = f"{len(expiring)} of {counted(len(keys), 'key')} may not sign, or not {SOON.days} days from now"
        yield warning(message, "see 'ranklake approvals show'; renew their lines in time")
    else:
        yield ok(f"{counted(len(keys), 'key')} may sign")


def removals(patient: Patient) -> Iterator[Finding]:
    """Check that each removal of rows has its plan, its approval and its audit rows."""
    lines = removal_faults(Context.of(patient.config).open_lake())
    for line in lines:
        yield failed(line, "find out by 'ranklake audit show' who did it, and 'ranklake replay' what was lost")
    if not lines:
        yield ok("each has its plan and its approval")


def drift(patient: Patient) -> Iterator[Finding]:
    """Check for writes to tables, columns and properties by other programs."""
    results = drifted(Context.of(patient.config).open_lake(), commits=COMMITS)
    for item in results:
        finding = failed if item.severity == "error" else warning
        yield finding(f"{item.table}: {item.message}", item.hint)
    if not results:
        yield ok("tables are as their contracts say, and nobody else wrote to them")
