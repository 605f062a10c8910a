"""``ranklake delete``: a person deletes a run of their own, with plan, audit rows and certificate of an erasure.

    recorded account of the run = caller? ─▶ allowed here? ─▶ proposed ─▶ approved ─▶ applied, all by one person

After a crash the next call continues. If another person has to approve, the proposal waits for that person.
"""

import os
import pwd
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ranklake.commands.approvals import mode_facts, tell_mode
from ranklake.commands.completion import complete_runs
from ranklake.commands.context import with_context
from ranklake.commands.options import also_option, json_option, lake_option, optional_spool
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.lake.ingest.index_summary import not_taken_in
from ranklake.lake.plans.driver import finish
from ranklake.lake.plans.kinds import ERASURE
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake_config import COMMAND, SIGNED
from ranklake.printable import counted
from ranklake.retention.backup.history import follow_removals
from ranklake.retention.erasure.apply import apply, approve
from ranklake.retention.erasure.certificate import Certificate, certificates
from ranklake.retention.erasure.plan import make_plan, propose
from ranklake.retention.erasure.subject import Reach, subject_of
from ranklake.retention.proposals.approvals import is_one_of
from ranklake.retention.proposals.erasures import ERASURES, FILES, Erasure
from ranklake.retention.proposals.identities import account, account_by
from ranklake.retention.subjects.store import has_keys
from ranklake.views.json_output import show_json
from ranklake.views.tell import progress_bar, tell

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Progress
    from ranklake.lake.store.lake import Lake

REASON: Final = "deletes a run of their own"
_SEGMENTS: Final = "SELECT 1 AS one FROM segments WHERE run = $run AND rows_stored > 0 LIMIT 1"
_OWNERS: Final = "SELECT DISTINCT {user} AS name FROM runs WHERE run = $run"


class NotOwnRunError(RanklakeError):
    """The caller may not delete the run: it has another owner or none, or own_runs forbids it. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class OwnRunDeletion:
    """Result of `delete_own_run`.

    Attributes
    ----------
    erasure
        The proposal.
    certificate
        The certificate; None if another person has to approve first.
    is_fresh
        Whether this call applied the erasure.
    """

    erasure: Erasure
    certificate: Certificate | None
    is_fresh: bool


def caller(lake: "Lake") -> str:
    """Return the account of the caller: by the identity command if configured, else the owner of this process.

    Environment variables are ignored. Raises `NotOwnRunError` if the account has no name on this machine.
    """
    if lake.config.approvals.mode == COMMAND:
        return account_by(lake.config.approvals)
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        hint = "add it to the machine's accounts, or configure [approvals] identity"
        raise NotOwnRunError(f"account {os.geteuid()} has no name here", hint=hint) from None


def delete_own_run(
    reach: Reach,
    run: str,
    *,
    confirm: Callable[[Erasure], None] = lambda _: None,
    progress: "Progress | None" = None,
) -> OwnRunDeletion:
    """Delete a run, by its full name, for the account that started it. Can be called again.

    Parameters
    ----------
    confirm
        Called with the erasure before anything is deleted; raises to stop.

    Raises
    ------
    NotOwnRunError
        The caller may not delete the run. Nothing was changed.
    ranklake.retention.erasure.archived.HeldError
        A legal hold covers it. Nothing was changed.

    Also raises the errors of `ranklake.retention.erasure.plan.make_plan` and `ranklake.retention.erasure.apply.apply`.
    """
    lake = reach.lake
    finish(lake, ERASURE, InProcess())  # an application that crashed
    subject = subject_of(lake, (), run)
    user = 'unsealed("user")' if has_keys(lake) else '"user"'
    owners = query(lake, _OWNERS.format(user=user), {"run": run})["name"].to_pylist()
    if not owners and (earlier := _applied_erasure(lake, subject.sha256)) is not None:
        if (issued := certificates(lake.store, earlier.name)) and issued[-1].is_clean:
            return OwnRunDeletion(earlier, issued[-1], is_fresh=False)
        result = apply(reach, earlier.name, subject, account(lake), single_operator=True, progress=progress)
        return OwnRunDeletion(result.erasure, result.certificate, result.is_fresh)
    _refuse_others(reach, run, owners)
    erasure = make_plan(reach, subject, progress=progress)
    confirm(erasure)
    section, by = lake.config.approvals, caller(lake)
    propose(lake, erasure, by)
    if section.own_runs == "allow":
        erasure, _ = approve(lake, erasure.name, by, REASON, single_operator=True)
    if ERASURES.find(lake, erasure.name).approved is None:
        return OwnRunDeletion(erasure, None, is_fresh=False)
    result = apply(reach, erasure.name, subject, by, single_operator=True, progress=progress)
    return OwnRunDeletion(result.erasure, result.certificate, result.is_fresh)


def _applied_erasure(lake: "Lake", subject_sha256: str) -> Erasure | None:
    """Return the last applied erasure of a subject; None if there is none."""
    erasures = [erasure for erasure in ERASURES.register(lake).values() if erasure.subject_sha256 == subject_sha256]
    applied = [erasure for erasure in erasures if erasure.applied is not None]
    return max(applied, key=lambda erasure: str(erasure.applied), default=None)


def _refuse_unknown(reach: Reach, run: str, others: str) -> None:
    """Raise `NotOwnRunError` for a run without a recorded owner: it is not ingested, has no owner, or does not exist.

    Raises `ranklake.lake.store.reachability.LakeUnreachableError` if the spool cannot be listed.
    """
    spools = [spool for spool in (reach.spool, reach.spool and reach.spool.fallback) if spool is not None]
    spooled = [item for spool in spools for item in spool.listing() if item.name is not None and item.name.run == run]
    if waiting := sum(map(len, not_taken_in(reach.lake.store, spooled))):
        verb = "is" if waiting == 1 else "are"
        message = f"{counted(waiting, 'segment')} of it in the spool {verb} not ingested yet"
        raise NotOwnRunError(message, where=run, hint="run 'ranklake ingest', then delete it")
    if query(reach.lake, _SEGMENTS, {"run": run}).num_rows:
        hint = f"propose it, and have somebody approve: {others}"
        raise NotOwnRunError("no row of runs says who started it", where=run, hint=hint)
    raise NotOwnRunError("no such run is in the lake", where=run, hint="name it whole; 'ranklake runs' lists them")


def _refuse_others(reach: Reach, run: str, owners: list[str | None]) -> None:
    """Raise `NotOwnRunError` unless the caller is the only recorded owner of the run and may delete it."""
    lake, others = reach.lake, f"ranklake erase plan --run {run}"
    if lake.config.approvals.own_runs == "forbid":
        hint = f"propose it, and have it approved: {others}"
        raise NotOwnRunError('nobody deletes runs of their own here: own_runs = "forbid"', where=run, hint=hint)
    if lake.config.approvals.mode == SIGNED:
        raise NotOwnRunError("this lake takes signatures of several people", where=run, hint=f"propose it: {others}")
    if not owners:
        _refuse_unknown(reach, run, others)
    if None in owners or not all(is_one_of(caller(lake), [owner]) for owner in owners):
        message = "nobody recorded who started it" if None in owners else "another account started it"
        raise NotOwnRunError(message, where=run, hint=f"propose it, and have somebody approve: {others}")


@click.command()
@click.argument("run", shell_complete=complete_runs)
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask.")
@also_option
@lake_option
@optional_spool("Spool to delete in; default: the configured one.")
@json_option
@with_context
def delete(context: Context, run: str, folders: tuple[Path, ...], *, is_sure: bool, as_json: bool) -> int:
    """Delete a run of your own, for good: its rows, segments, copied artifacts, and every other trace.

    RUN is the run's whole name. A run is yours if this account is recorded as the one that started it. A run under a
    legal hold is not deleted; [approvals] own_runs in ranklake.toml can forbid deletion, or require another person's
    approval. Writes audit rows and a certificate, as `ranklake erase` does. If it is interrupted, run it again. Exits 1
    if any data is left.
    """
    lake = context.open_lake()
    reach = Reach(
        lake, context.spool() if context.has_spool else None, tuple(dict.fromkeys((*context.own_folders, *folders)))
    )

    def confirm(erasure: Erasure) -> None:
        text = f"{run}: {counted(erasure.rows, 'row')} and {_files_text(erasure)} will be deleted for good"
        if is_sure:
            return
        if as_json or not sys.stdin.isatty():
            raise RanklakeError("cannot ask for confirmation without a terminal", where=run, hint=f"add --yes: {text}")
        if not click.confirm(f"{text}. Delete it?", err=True):
            raise click.Abort

    with progress_bar("search") as progress:
        deletion = delete_own_run(reach, run, confirm=confirm, progress=progress)
    erasure, certificate = deletion.erasure, deletion.certificate
    if certificate is None:
        return _tell_waiting(context, erasure, as_json=as_json)
    left = list(follow_removals(lake))
    if as_json:
        facts = {"certificate": certificate.name, "is_clean": certificate.is_clean, "left_in_backups": left}
        show_json({"deleted_now": deletion.is_fresh, **facts, **mode_facts(lake), **erasure.plain()})
    else:
        text = f"deleted {counted(erasure.rows, 'row')} by plan {erasure.plan}"
        rest = "no data is left" if certificate.is_clean else f"data is left: continue with '{erasure.to_apply}'"
        tell(f"{run}: {text if deletion.is_fresh else 'deleted before'}; {rest}; certificate {certificate.name}", *left)
        tell_mode(lake)
    return 0 if certificate.is_clean and not left else 1


def _files_text(erasure: Erasure) -> str:
    return counted(sum(item.files for item in erasure.of(FILES)), "further file")


def _tell_waiting(context: Context, erasure: Erasure, *, as_json: bool) -> int:
    """Print that nothing is deleted before another person approves, and the command to approve with."""
    section = context.lake_config.approvals
    if as_json:
        show_json({"deleted_now": False, "waits_for_approval": True, **erasure.plain()})
    else:
        command = section.by_somebody(ERASURES.to_approve(erasure.name))
        tell(
            f"nothing is deleted yet: {erasure.name} needs another person's approval: {command}; "
            "then run this command again"
        )
    return 1
