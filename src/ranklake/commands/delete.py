"""``ranklake delete``."""

import sys
from pathlib import Path

import click

from ranklake.commands.approvals import mode_facts, tell_mode
from ranklake.commands.completion import complete_runs
from ranklake.commands.context import with_context
from ranklake.commands.options import also_option, json_option, lake_option, optional_spool
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.printable import counted
from ranklake.retention.backup.history import follow_removals
from ranklake.retention.erasure.own_run import delete_own_run
from ranklake.retention.erasure.subject import Reach
from ranklake.retention.proposals.erasures import ERASURES, FILES, Erasure
from ranklake.views.json_output import show_json
from ranklake.views.tell import progress_bar, tell


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
