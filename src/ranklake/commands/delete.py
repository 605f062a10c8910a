"""``ranklake delete``."""

import sys
from pathlib import Path

import click

from ranklake.commands.approvals import mode_facts, tell_mode
from ranklake.commands.completion import complete_runs
from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option, optional_spool
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
@click.option(
    "--also",
    "folders",
    metavar="PATH",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="Reach into this folder, too: local spools. The configured report is. May be given often.",
)
@lake_option
@optional_spool("Spool to delete in; default: the configured one.")
@json_option
@with_context
def delete(context: Context, run: str, folders: tuple[Path, ...], *, is_sure: bool, as_json: bool) -> int:
    """Delete a run of your own, for good: its rows, segments, copied artifacts, and every other trace.

    RUN is its whole name. It is yours if the account that started it, as recorded, runs this command. A legal hold
    keeps it; [approvals] own_runs in ranklake.toml may forbid this, or have another person approve. Writes audit rows
    and a certificate, as `ranklake erase` does. Interrupted, run it again. Exits 1 if anything is left.
    """
    lake = context.open_lake()
    reach = Reach(
        lake, context.spool() if context.has_spool else None, tuple(dict.fromkeys((*context.own_folders, *folders)))
    )

    def confirm(erasure: Erasure) -> None:
        text = f"{run}: {counted(erasure.rows, 'row')}, {_files_text(erasure)} go for good"
        if is_sure:
            return
        if as_json or not sys.stdin.isatty():
            raise RanklakeError("nobody is there to be asked", where=run, hint=f"write --yes: {text}")
        if not click.confirm(f"{text}. Delete it?", err=True):
            raise click.Abort

    with progress_bar("search") as progress:
        done = delete_own_run(reach, run, confirm=confirm, progress=progress)
    certificate = done.certificate
    if certificate is None:
        return _tell_waiting(context, done.erasure, as_json=as_json)
    left = list(follow_removals(lake))
    if as_json:
        facts = {"certificate": certificate.name, "is_clean": certificate.is_clean, "left_in_backups": left}
        show_json({"deleted_now": done.is_fresh, **facts, **mode_facts(lake), **done.erasure.plain()})
    else:
        text = f"deleted, {counted(done.erasure.rows, 'row')} by plan {done.erasure.plan}"
        is_left = "nothing is left" if certificate.is_clean else f"something is left; {done.erasure.to_apply} goes on"
        tell(f"{run}: {text if done.is_fresh else 'deleted before'}; {is_left}; certificate {certificate.name}", *left)
        tell_mode(lake)
    return 0 if certificate.is_clean and not left else 1


def _files_text(erasure: Erasure) -> str:
    return counted(sum(item.files for item in erasure.of(FILES)), "further file")


def _tell_waiting(context: Context, erasure: Erasure, *, as_json: bool) -> int:
    """Say who has to approve."""
    section = context.lake_config.approvals
    if as_json:
        show_json({"deleted_now": False, "waits_for_approval": True, **erasure.plain()})
    else:
        approved = section.by_somebody(ERASURES.to_approve(erasure.name))
        tell(
            f"nothing is deleted yet: {erasure.name} needs the approval of another person: {approved}; then do it again"
        )
    return 1
