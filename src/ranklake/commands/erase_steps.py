"""``ranklake erase plan | approve | apply | list``: a person's data, or a run's, by proposal and approval."""

import sys
from collections.abc import Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import click

from ranklake.commands.approvals import SigningOptions, approval_command, mode_facts, signing_options, tell_mode
from ranklake.commands.context import with_context
from ranklake.commands.options import Command, json_option, lake_option, optional_spool
from ranklake.context import Context
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import ApprovalsSection
from ranklake.printable import counted
from ranklake.retention.backup.history import follow_removals
from ranklake.retention.erasure.apply import apply as apply_erasure
from ranklake.retention.erasure.apply import approve as approve_erasure
from ranklake.retention.erasure.plan import make_plan, propose
from ranklake.retention.erasure.subject import Reach, Subject, subject_of, subject_under
from ranklake.retention.proposals.erasures import ERASURES, FILES, NAMES, RAW, ROWS, STAYS, Erasure
from ranklake.retention.proposals.identities import APPLY, PROPOSE
from ranklake.views.json_output import show_json
from ranklake.views.progress import progress_bar
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell

_COLUMNS = (*map(TextColumn, ("what", "table", "partition")), *numbers(("rows", "files")), TextColumn("about"))
_SAME = "the same values, one a line, or the same run, and the same --also"
_SAID = {ROWS: "rows", NAMES: "names in rows", RAW: "raw bytes", FILES: "files", STAYS: "stays"}


def given_values(values: tuple[str, ...]) -> Sequence[str]:
    """Return values that name somebody: those of the command, or the lines of standard input in the place of a -."""
    if values != ("-",):
        return values
    if sys.stdin.isatty():  # nothing else would say what the command waits for
        tell("write the values, one a line, and end with Ctrl-D", err=True)
    return sys.stdin.read().splitlines()


class SubjectOptions:
    """Whom a command is about, and the folders that it looks into beside the lake and the spool."""

    def __init__(
        self, values: tuple[str, ...], run: str | None, folders: tuple[Path, ...], columns: tuple[str, ...]
    ) -> None:
        self._values, self._run, self._folders, self._columns = values, run, folders, columns

    @property
    def is_said(self) -> bool:
        """Whether anybody is named."""
        return bool(self._values or self._run)

    def subject(self, identity: str) -> Subject:
        """Return whom it is about, under a lake's identity: a run, or values, from standard input where they are -."""
        return subject_under(identity, self._identifiers(), self._run, self._columns)

    def subject_in(self, lake: Lake) -> Subject:
        """Return whom it is about in a lake, with what opens the words of others there."""
        return subject_of(lake, self._identifiers(), self._run, self._columns)

    def _identifiers(self) -> Sequence[str]:
        if self._run is not None and self._values:
            raise click.UsageError("--run names a run, and VALUEs a person: give one of them")
        return given_values(self._values)

    def reach(self, context: Context) -> Reach:
        """Return what the command reaches."""
        folders = tuple(dict.fromkeys((*context.own_folders, *self._folders)))
        return Reach(context.open_lake(), context.spool() if context.has_spool else None, folders)


def whom_options(command: Command) -> Command:
    """Declare VALUEs, ``--run`` and ``--also``, which come as one argument, ``whom``."""

    @click.argument("values", metavar="[VALUE...]", nargs=-1)
    @click.option("--run", "run_name", metavar="RUN", help="Erase a run, in the place of a person.")
    @click.option(
        "--also",
        "folders",
        metavar="PATH",
        multiple=True,
        type=click.Path(path_type=Path, exists=True),
        help="Reach into this folder, too: Prefect's home, local spools. The configured report is. May be given often.",
    )
    @click.option(
        "--column",
        "columns",
        metavar="NAME",
        multiple=True,
        help="Column, such as user, in which a VALUE of less than 6 characters may be all. May be given often.",
    )
    @wraps(command)
    def run(
        *args: Any,  # noqa: ANN401 - the command's own
        values: tuple[str, ...],
        run_name: str | None,
        folders: tuple[Path, ...],
        columns: tuple[str, ...],
        **options: Any,  # noqa: ANN401 - likewise
    ) -> Any:  # noqa: ANN401 - likewise
        return command(*args, whom=SubjectOptions(values, run_name, folders, columns), **options)

    return run  # type: ignore[return-value]


@click.command()
@whom_options
@lake_option
@optional_spool("Spool to look into; default: the configured one.")
@click.option("--by", metavar="NAME", help="Who proposes, and so may not approve; kept in the audit trail.")
@signing_options
@json_option
@with_context
def plan(
    context: Context,
    by: str | None,
    *,
    whom: SubjectOptions,
    signature_options: SigningOptions,
    as_json: bool,
) -> None:
    """Propose to erase a person, named by VALUEs such as an account and an address, or a run.

    A value counts as a word: ada.lovelace is not found in nada.lovelace2. One of less than 6 characters counts only
    where it is all that a --column holds. With - values are read from standard input, one a line. Says where they are,
    and writes the proposal down without them. Where a legal hold is about any of it, nothing is proposed.
    """
    reach = whom.reach(context)
    lake = reach.lake
    subject = whom.subject_in(lake)
    with progress_bar("search") as progress:
        made = make_plan(reach, subject, progress=progress)
    if signature_options.text_only:
        signature_options.print_statement(lake, ERASURES, made.name, PROPOSE, by)
        return
    propose(lake, made, signature_options.who(lake, "ranklake erase plan", by), signature_options.signing)
    if as_json:
        show_json({**made.plain(), **mode_facts(lake)})
        return
    show(made, lake.config.approvals)
    if reach.spool is None:
        tell("no spool is configured: it was not looked into", err=True)
    if not reach.folders:
        tell("looked into lake and spool alone; Prefect's home and other folders are named by --also", err=True)
    tell_mode(lake)


approve = approval_command(
    ERASURES,
    approve_erasure,
    "Approve an erasure, so that it can be applied. Its author may not.",
    metavar="ERASURE",
    then=lambda erasure, named: f"apply it with '{named(erasure.to_apply)}', {_SAME}",
    plain=Erasure.plain,
)


@click.command()
@click.argument("name", metavar="ERASURE")
@whom_options
@lake_option
@optional_spool("Spool to erase in; default: the configured one.")
@click.option("--by", metavar="NAME", help="Who applies it; default: the account that runs this.")
@click.option("--single-operator", is_flag=True, help="Let the approver apply it, too; trail and outputs then say so.")
@signing_options
@json_option
@with_context
def apply(
    context: Context,
    name: str,
    by: str | None,
    *,
    whom: SubjectOptions,
    single_operator: bool,
    signature_options: SigningOptions,
    as_json: bool,
) -> int:
    """Erase exactly what an approved erasure names, search everything anew, and write a certificate.

    Takes the same VALUEs, --column and --also as the proposal. If it is interrupted, run it again: it goes on, and
    writes another certificate. Backups of the lake are brought up to date. Exits 1 if anything is left.
    """
    reach = whom.reach(context)
    lake = reach.lake
    if signature_options.text_only:
        signature_options.print_statement(lake, ERASURES, name, APPLY, by)
        return 0
    actor = signature_options.who(lake, f"ranklake erase apply {name}", by)
    subject = whom.subject_in(lake)
    with progress_bar("search") as progress:
        done = apply_erasure(
            reach,
            name,
            subject,
            actor,
            single_operator=single_operator,
            signing=signature_options.signing,
            progress=progress,
        )
    certificate, result = done.certificate, done.certificate.facts["search"]
    left_in_backups = follow_removals(lake)
    status = 0 if certificate.is_clean and not left_in_backups else 1
    if as_json:
        head = {"applied_now": done.fresh, "certificate": certificate.name, "is_clean": certificate.is_clean}
        backups = {"left_in_backups": list(left_in_backups)}
        show_json({**head, "search": result, **backups, **mode_facts(lake), **done.erasure.plain()})
        return status
    message = f"erased {counted(done.erasure.rows, 'row')} by plan {done.erasure.plan}"
    tell(f"{name}: {message if done.fresh else f'applied already, by plan {done.erasure.plan}'}")
    for item in done.done:
        tell(f"{item.place}: {counted(item.files, 'file')} {item.action}")
    for key, label in (("stays", "stays"), ("unsearched", "could not be looked into"), ("found", "still there")):
        for item in result[key]:
            tell(f"{label}: {item['place']}, {item['where']}: {counted(item['files'], 'file')}")
    left = "nothing is left" if certificate.is_clean else "something is left: plan again, or name its folder by --also"
    tell(f"{counted(result['files'], 'file')} searched anew: {left}; certificate {certificate.name}")
    for line in left_in_backups:
        tell(line)
    tell_mode(lake)
    return status


@click.command("list")
@lake_option
@json_option
@with_context
def list_(context: Context, *, as_json: bool) -> None:
    """List erasures and their state."""
    lake = context.open_lake()
    results = ERASURES.register(lake).values()
    if as_json:
        show_json([{**one.plain(), **mode_facts(lake)} for one in results])
        return
    for item in results:
        when = item.applied or item.approved or item.proposed
        tell(f"{item.name}  {item.state:<8}  {'' if when is None else f'{when:%Y-%m-%d %H:%M}'}  {_sums(item)}")
    if not results:
        tell("no erasures")
    tell_mode(lake)


def show(made: Erasure, section: ApprovalsSection) -> None:
    """Print where a subject is."""
    lines = [
        (said, one.table or "", str(one.partition_date or ""), f"{one.rows:,}", f"{one.files:,}", one.about or "")
        for place, said in _SAID.items()
        for one in made.of(place)
    ]
    tell(*table_lines(_COLUMNS, lines))
    then = {
        "proposed": f"nobody approved it yet: {section.by_somebody(ERASURES.to_approve(made.name))}",
        "approved": f"approved: {section.by_somebody(made.to_apply)}, {_SAME}",
        "applied": "applied",
        "altered": "its items were altered",
    }
    tell(f"erasure {made.name}: {_sums(made)}; {then[made.state]}")


def _sums(erasure: Erasure) -> str:
    files = sum(item.files for item in erasure.of(FILES))
    return f"{counted(erasure.rows, 'row')}, {counted(files, 'further file')}"
