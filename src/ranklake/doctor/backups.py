"""Probe of the places of backups: whether the newest is overdue, and whether it was ever restored for a try."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from ranklake.context import Context
from ranklake.doctor.examination import Patient
from ranklake.doctor.finding import Finding, alerted, failed, ok, skipped, warning
from ranklake.errors import RanklakeError
from ranklake.lake.store.store import Store
from ranklake.redaction.redact import redact_uri
from ranklake.retention.backup.history import last_drill
from ranklake.retention.backup.place import lake_of, newest_made, unlock
from ranklake.retention.proposals.identities import owner

_REMEDY = "schedule 'ranklake backup', or the deployment of this name; look why it does not run, or fails"


def backup(patient: Patient) -> Iterator[Finding]:
    """Say of each place of ``[backup] to`` how old its newest backup is, and how the last drill went."""
    yield from _places(patient, has_drills=True)


def backup_ages(patient: Patient) -> Iterator[Finding]:
    """Say of each place how old its newest backup is."""
    yield from _places(patient, has_drills=False)


def _places(patient: Patient, *, has_drills: bool) -> Iterator[Finding]:
    context = Context.of(patient.config)
    section = context.lake_config.backup
    if not section.to:
        yield skipped("nothing is backed up: name a place as to under [backup]", "see docs/disaster-recovery.md")
    for uri in section.to:
        try:
            yield from _of_place(context, uri, timedelta(hours=section.every_h), has_drills=has_drills)
        except (RanklakeError, OSError) as error:  # of one place; the others may be sound
            reason = error.what if isinstance(error, RanklakeError) else type(error).__name__
            yield alerted(
                failed(f"{redact_uri(uri)}: {reason}", "run 'ranklake backup' to it, or look after its store")
            )


def _of_place(context: Context, uri: str, every: timedelta, *, has_drills: bool) -> Iterator[Finding]:
    place, shown = unlock(context.place(uri), context.lake_config.backup.key), redact_uri(uri)
    if lake_of(place) != owner(context.open_lake().store):
        yield alerted(failed(f"{shown}: the backups are of another lake", "name a place of its own under [backup]"))
        return
    made = newest_made(place)
    if made is None:
        yield alerted(warning(f"{shown}: no backup is there", _REMEDY))
        return
    age = datetime.now(UTC) - made
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
