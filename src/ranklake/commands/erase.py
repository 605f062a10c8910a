"""``ranklake erase``."""

import hashlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import click

from ranklake.commands.approvals import SigningOptions, approval_command, mode_facts, signing_options, tell_mode
from ranklake.commands.context import with_context
from ranklake.commands.options import (
    Command,
    Group,
    json_option,
    lake_option,
    optional_lake,
    optional_spool,
    spool_option,
)
from ranklake.context import Context
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import ApprovalsSection
from ranklake.printable import counted
from ranklake.retention.backup.history import follow_removals
from ranklake.retention.erasure.apply import apply as apply_erasure
from ranklake.retention.erasure.apply import approve as approve_erasure
from ranklake.retention.erasure.certificate import (
    Certificate,
    NoCertificateError,
    certificates,
    verify_alone,
    verify_signatures,
    verify_with_lake,
)
from ranklake.retention.erasure.plan import key_traces, make_plan, propose
from ranklake.retention.erasure.search import Trace, search
from ranklake.retention.erasure.subject import Reach, Subject, subject_of, subject_under
from ranklake.retention.proposals.erasures import ERASURES, FILES, NAMES, RAW, ROWS, STAYS, Erasure
from ranklake.retention.proposals.identities import APPLY, PROPOSE
from ranklake.retention.subjects.store import LOST, key_state
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import progress_bar, tell

_ITEM_COLUMNS = (*map(TextColumn, ("what", "table", "partition")), *numbers(("rows", "files")), TextColumn("about"))
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
    show_proposal(made, lake.config.approvals)
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


def show_proposal(made: Erasure, section: ApprovalsSection) -> None:
    """Print where a subject is."""
    lines = [
        (said, one.table or "", str(one.partition_date or ""), f"{one.rows:,}", f"{one.files:,}", one.about or "")
        for place, said in _SAID.items()
        for one in made.of(place)
    ]
    tell(*table_lines(_ITEM_COLUMNS, lines))
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


@click.group(cls=Group)
def certificate() -> None:
    """Show and verify certificates of erasures."""


@certificate.command()
@click.argument("name", metavar="ERASURE")
@click.option("--out", metavar="FOLDER", type=click.Path(path_type=Path), help="Write it there, under its digest.")
@lake_option
@with_context
def show(context: Context, name: str, out: Path | None) -> None:
    """Print the newest certificate of an erasure, or write it into a folder."""
    result = certificates(context.open_lake().store, name)
    if not result:
        hint = "apply it: ranklake erase apply"
        raise NoCertificateError("this erasure has no certificate yet", where=name, hint=hint)
    if out is None:
        click.echo(result[-1].raw.decode(), nl=False)  # noqa: TID251 - a document, as it is
        return
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{result[-1].name}.json"
    path.write_bytes(result[-1].raw)
    tell(str(path))


@certificate.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@whom_options
@click.option(
    "--allowed-signers", "signers", metavar="PATH", help="Verify signatures by this file; default: the configured one."
)
@click.option("--with-lake", is_flag=True, help="Hold it against the lake, too.")
@optional_lake("URI or folder of the lake, for --with-lake.")
@json_option
@with_context
def verify(
    context: Context,
    file: Path,
    signers: str | None,
    *,
    whom: SubjectOptions,
    with_lake: bool,
    as_json: bool,
) -> int:
    """Verify a certificate by itself, anywhere: digest, items, approvals, a search that found nothing.

    With an allowed-signers file signatures are verified; with VALUEs (or -, or --run) that it is about them; with the
    lake that its trail knows it, and that the files that went are gone. Exits 1 if anything is wrong.
    """
    raw = file.read_bytes()
    result = Certificate.parse(raw, str(file))
    named = file.name.removesuffix(".json")
    is_named = len(named) == len(result.name)
    faults = verify_alone(result, named if is_named else "")
    if hashlib.sha256(raw).hexdigest() != result.name:
        faults.append("its bytes are not those that were written")
    verified = ["the certificate by itself"]
    path = signers or context.lake_config.approvals.allowed_signers
    if path:
        faults += verify_signatures(result, path)
        verified.append("signatures")
    if whom.is_said:
        subject = whom.subject(result.facts["lake"])
        faults += [] if subject.sha256 == result.facts["subject"]["scrypt_sha256"] else ["it is about somebody else"]
        verified.append("the subject")
    if with_lake:
        faults += verify_with_lake(result, context.open_lake())
        verified.append("the lake")
    if as_json:
        show_json({"certificate": result.name, "verified": verified, "faults": faults, "unsearched": result.unsearched})
        return 1 if faults else 0
    for fault in faults:
        tell(fault)
    if result.unsearched:
        tell(f"{counted(result.unsearched, 'file')} could not be looked into; the certificate names them")
    verdict = "does not hold" if faults else "holds"
    tell(f"{result.facts['erasure']}: the certificate {verdict}; verified: {', '.join(verified)}")
    return 1 if faults else 0


_COLUMNS = (*map(TextColumn, ("place", "where")), *numbers(("files", "rows or times")), TextColumn("such as"))


@click.group(cls=Group)
def erase() -> None:
    """Find where a person's data, or a run's, is; erase it, and prove that.

    Only an erasure that somebody has approved takes anything.
    """


for _command in (plan, approve, apply, list_, certificate):
    erase.add_command(_command)


@erase.command()
@click.argument("values", metavar="VALUE...", nargs=-1, required=True)
@click.option(
    "--also",
    "folders",
    metavar="PATH",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="Search this folder, too: local spools, Prefect's home. The configured report is. May be given several times.",
)
@lake_option
@spool_option
@json_option
@with_context
def find(context: Context, values: tuple[str, ...], folders: tuple[Path, ...], *, as_json: bool) -> int:
    """Search every file of the lake and the spool for VALUEs: names, addresses, names of runs.

    Reads them from standard input, one a line, where VALUE is -, so that no list of processes and no history of the
    shell has them. Looks into tables, old versions, logs, statistics, plans, quarantine, segments and packs, in letters
    of either case, and in JSON, HTML, URLs, base64 and hex. Hashes and pseudonyms of a value are not found; keys of
    subjects are. No value is shown. Exits 1 if anything is found, or could not be looked into.
    """
    given = given_values(values)
    lake, spool = context.open_lake(), context.spool() if context.has_spool else None
    with progress_bar("search") as progress:
        done = search(lake, spool, given, (*context.own_folders, *folders), progress=progress)
    done = replace(done, traces=(*done.traces, *key_traces(lake, given)))
    if as_json:
        show_json(done.plain())
        return 0 if done.is_clean else 1
    _table(done.traces)
    if done.unsearched:
        tell("could not be looked into:")
        _table(done.unsearched)
    places = counted(len({one.place for one in done.traces}), "kind") + " of places"
    tell(f"{counted(done.files, 'file')} searched: {f'found in {places}' if done.traces else 'nothing found'}")
    return 0 if done.is_clean else 1


@erase.command()
@lake_option
@json_option
@with_context
def keys(context: Context, *, as_json: bool) -> int:
    """Say what became of the keys that columns are stored under: how many are there, forgotten, damaged, lost.

    Exits 1 if one is damaged or lost: restore its file from a backup, or erase whom it was of.
    """
    state = key_state(context.open_lake())
    if as_json:
        show_json(state.plain())
        return 0 if state.is_sound else 1
    for where, wrong, hint in state.faults:
        tell(f"{where}: {wrong}; {hint}")
    for column, rows in state.lost:
        tell(f"{column}: {counted(rows, 'row')} under keys that are lost; {LOST}")
    tell(f"{counted(state.keys, 'key')} of subjects, {state.forgotten:,} forgotten")
    return 0 if state.is_sound else 1


def _table(traces: Iterable[Trace]) -> None:
    lines = [(one.place, one.where, f"{one.files:,}", f"{one.count:,}", one.examples[0]) for one in traces]
    if lines:
        tell(*table_lines(_COLUMNS, lines))
