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
    also_option,
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
_SAME_SUBJECT = "the same values, one a line, or the same run, and the same --also"
_PLACE_LABELS = {ROWS: "rows", NAMES: "names in rows", RAW: "raw bytes", FILES: "files", STAYS: "stays"}


def subject_values(values: tuple[str, ...]) -> Sequence[str]:
    """Return the values that identify a subject: the command's, or, for ``-``, the lines of standard input."""
    if values != ("-",):
        return values
    if sys.stdin.isatty():  # otherwise the command would seem to hang
        tell("write the values, one a line, and end with Ctrl-D", err=True)
    return sys.stdin.read().splitlines()


class SubjectOptions:
    """The subject of an erasure, as options name it, and the folders to search besides the lake and the spool."""

    def __init__(
        self, values: tuple[str, ...], run: str | None, folders: tuple[Path, ...], columns: tuple[str, ...]
    ) -> None:
        self._values, self._run, self._folders, self._columns = values, run, folders, columns

    @property
    def has_subject(self) -> bool:
        """Whether the options name a subject."""
        return bool(self._values or self._run)

    def subject(self, identity: str) -> Subject:
        """Return the subject, hashed under a lake's identity. Reads standard input if VALUE is ``-``."""
        return subject_under(identity, self._identifiers(), self._run, self._columns)

    def subject_in(self, lake: Lake) -> Subject:
        """Return the subject in a lake, with the keys that decrypt text stored under other subjects' keys."""
        return subject_of(lake, self._identifiers(), self._run, self._columns)

    def _identifiers(self) -> Sequence[str]:
        if self._run is not None and self._values:
            raise click.UsageError("--run names a run, and VALUEs a person: give one of them")
        return subject_values(self._values)

    def reach(self, context: Context) -> Reach:
        """Return the lake, spool and folders that the command searches."""
        folders = tuple(dict.fromkeys((*context.own_folders, *self._folders)))
        return Reach(context.open_lake(), context.spool() if context.has_spool else None, folders)


def with_subject(command: Command) -> Command:
    """Declare VALUEs, ``--run``, ``--also`` and ``--column``, and pass them as one argument, ``subject_options``."""

    @click.argument("values", metavar="[VALUE...]", nargs=-1)
    @click.option("--run", "run_name", metavar="RUN", help="Erase a run instead of a person.")
    @also_option
    @click.option(
        "--column",
        "columns",
        metavar="NAME",
        multiple=True,
        help="Match VALUEs of fewer than 6 characters against whole cells of this column, such as user. Repeatable.",
    )
    @wraps(command)
    def run(
        *args: Any,  # noqa: ANN401 - arguments of the command
        values: tuple[str, ...],
        run_name: str | None,
        folders: tuple[Path, ...],
        columns: tuple[str, ...],
        **options: Any,  # noqa: ANN401 - likewise
    ) -> Any:  # noqa: ANN401 - likewise
        return command(*args, subject_options=SubjectOptions(values, run_name, folders, columns), **options)

    return run  # type: ignore[return-value]


@click.command()
@with_subject
@lake_option
@optional_spool("Spool to look into; default: the configured one.")
@click.option("--by", metavar="NAME", help="Who proposes, and therefore may not approve; recorded in the audit log.")
@signing_options
@json_option
@with_context
def plan(
    context: Context,
    by: str | None,
    *,
    subject_options: SubjectOptions,
    signature_options: SigningOptions,
    as_json: bool,
) -> None:
    """Propose to erase a person, identified by VALUEs such as an account and an address, or a run.

    A value matches whole words: ada.lovelace does not match nada.lovelace2. A value of fewer than 6 characters matches
    only a whole cell of a --column. With -, values are read from standard input, one per line. Prints where they are;
    the stored proposal does not contain them. Nothing is proposed if a legal hold covers any of the data.
    """
    reach = subject_options.reach(context)
    lake = reach.lake
    subject = subject_options.subject_in(lake)
    with progress_bar("search") as progress:
        erasure = make_plan(reach, subject, progress=progress)
    if signature_options.text_only:
        signature_options.print_statement(lake, ERASURES, erasure.name, PROPOSE, by)
        return
    propose(lake, erasure, signature_options.who(lake, "ranklake erase plan", by), signature_options.signing)
    if as_json:
        show_json({**erasure.plain(), **mode_facts(lake)})
        return
    show_proposal(erasure, lake.config.approvals)
    if reach.spool is None:
        tell("no spool is configured, so none was searched", err=True)
    if not reach.folders:
        tell("searched the lake and the spool; name Prefect's home and other folders with --also", err=True)
    tell_mode(lake)


approve = approval_command(
    ERASURES,
    approve_erasure,
    "Approve an erasure, so that it can be applied. Its author may not.",
    metavar="ERASURE",
    then=lambda erasure, with_lake: f"apply it with '{with_lake(erasure.to_apply)}', {_SAME_SUBJECT}",
    plain=Erasure.plain,
)


@click.command()
@click.argument("name", metavar="ERASURE")
@with_subject
@lake_option
@optional_spool("Spool to erase in; default: the configured one.")
@click.option("--by", metavar="NAME", help="Who applies it; default: the account that runs this.")
@click.option(
    "--single-operator", is_flag=True, help="Let the approver apply it, too; audit log and outputs record it."
)
@signing_options
@json_option
@with_context
def apply(
    context: Context,
    name: str,
    by: str | None,
    *,
    subject_options: SubjectOptions,
    single_operator: bool,
    signature_options: SigningOptions,
    as_json: bool,
) -> int:
    """Erase exactly what an approved erasure lists, search everything again, and write a certificate.

    Takes the same VALUEs, --column and --also as the proposal. If it is interrupted, run it again: it resumes, and
    writes another certificate. Also removes the data from backups of the lake. Exits 1 if any data is left.
    """
    reach = subject_options.reach(context)
    lake = reach.lake
    if signature_options.text_only:
        signature_options.print_statement(lake, ERASURES, name, APPLY, by)
        return 0
    actor = signature_options.who(lake, f"ranklake erase apply {name}", by)
    subject = subject_options.subject_in(lake)
    with progress_bar("search") as progress:
        applied = apply_erasure(
            reach,
            name,
            subject,
            actor,
            single_operator=single_operator,
            signing=signature_options.signing,
            progress=progress,
        )
    erasure, certificate, search_facts = applied.erasure, applied.certificate, applied.certificate.facts["search"]
    left_in_backups = follow_removals(lake)
    status = 0 if certificate.is_clean and not left_in_backups else 1
    if as_json:
        head = {"applied_now": applied.is_fresh, "certificate": certificate.name, "is_clean": certificate.is_clean}
        backups = {"left_in_backups": list(left_in_backups)}
        show_json({**head, "search": search_facts, **backups, **mode_facts(lake), **erasure.plain()})
        return status
    message = f"erased {counted(erasure.rows, 'row')} by plan {erasure.plan}"
    tell(f"{name}: {message if applied.is_fresh else f'applied already, by plan {erasure.plan}'}")
    for item in applied.places:
        tell(f"{item.place}: {counted(item.files, 'file')} {item.action}")
    for key, label in (("stays", "stays"), ("unsearched", "could not be searched"), ("found", "still there")):
        for item in search_facts[key]:
            tell(f"{label}: {item['place']}, {item['where']}: {counted(item['files'], 'file')}")
    left = "no data is left" if certificate.is_clean else "data is left: plan again, or name its folder with --also"
    tell(f"{counted(search_facts['files'], 'file')} searched again: {left}; certificate {certificate.name}")
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
    erasures = ERASURES.register(lake).values()
    if as_json:
        show_json([{**erasure.plain(), **mode_facts(lake)} for erasure in erasures])
        return
    for erasure in erasures:
        last_change = erasure.applied or erasure.approved or erasure.proposed
        time = "" if last_change is None else f"{last_change:%Y-%m-%d %H:%M}"
        tell(f"{erasure.name}  {erasure.state:<8}  {time}  {_size_text(erasure)}")
    if not erasures:
        tell("no erasures")
    tell_mode(lake)


def show_proposal(erasure: Erasure, section: ApprovalsSection) -> None:
    """Print the items of a proposed erasure: place, table, date, rows and files of each; and the next step."""
    lines = [
        (label, item.table or "", str(item.partition_date or ""), f"{item.rows:,}", f"{item.files:,}", item.about or "")
        for place, label in _PLACE_LABELS.items()
        for item in erasure.of(place)
    ]
    tell(*table_lines(_ITEM_COLUMNS, lines))
    next_step = {
        "proposed": f"nobody approved it yet: {section.by_somebody(ERASURES.to_approve(erasure.name))}",
        "approved": f"approved: {section.by_somebody(erasure.to_apply)}, {_SAME_SUBJECT}",
        "applied": "applied",
        "altered": "its items were changed after the proposal",
    }
    tell(f"erasure {erasure.name}: {_size_text(erasure)}; {next_step[erasure.state]}")


def _size_text(erasure: Erasure) -> str:
    files = sum(item.files for item in erasure.of(FILES))
    return f"{counted(erasure.rows, 'row')}, {counted(files, 'further file')}"


@click.group(cls=Group)
def certificate() -> None:
    """Show and verify certificates of erasures."""


@certificate.command()
@click.argument("name", metavar="ERASURE")
@click.option(
    "--out", metavar="FOLDER", type=click.Path(path_type=Path), help="Write it into this folder, named by its digest."
)
@lake_option
@with_context
def show(context: Context, name: str, out: Path | None) -> None:
    """Print the newest certificate of an erasure, or write it into a folder."""
    written = certificates(context.open_lake().store, name)
    if not written:
        hint = "apply it: ranklake erase apply"
        raise NoCertificateError("this erasure has no certificate yet", where=name, hint=hint)
    if out is None:
        click.echo(written[-1].raw.decode(), nl=False)  # noqa: TID251 - a document, as it is
        return
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{written[-1].name}.json"
    path.write_bytes(written[-1].raw)
    tell(str(path))


@certificate.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@with_subject
@click.option(
    "--allowed-signers", "signers", metavar="PATH", help="Verify signatures by this file; default: the configured one."
)
@click.option("--with-lake", is_flag=True, help="Compare it with the lake, too.")
@optional_lake("URI or folder of the lake, for --with-lake.")
@json_option
@with_context
def verify(
    context: Context,
    file: Path,
    signers: str | None,
    *,
    subject_options: SubjectOptions,
    with_lake: bool,
    as_json: bool,
) -> int:
    """Verify a certificate, with or without the lake: digest, items, approvals, and that the last search found nothing.

    An allowed-signers file verifies signatures, VALUEs (or -, or --run) the subject, and --with-lake the entry in the
    audit log and that the erased files are gone. Exits 1 if anything is wrong.
    """
    raw = file.read_bytes()
    document = Certificate.parse(raw, str(file))
    stem = file.name.removesuffix(".json")
    is_digest = len(stem) == len(document.name)
    faults = verify_alone(document, stem if is_digest else "")
    if hashlib.sha256(raw).hexdigest() != document.name:
        faults.append("its bytes are not those that were written")
    verified = ["the certificate by itself"]
    path = signers or context.lake_config.approvals.allowed_signers
    if path:
        faults += verify_signatures(document, path)
        verified.append("signatures")
    if subject_options.has_subject:
        subject = subject_options.subject(document.facts["lake"])
        faults += [] if subject.sha256 == document.facts["subject"]["scrypt_sha256"] else ["its subject is another one"]
        verified.append("the subject")
    if with_lake:
        faults += verify_with_lake(document, context.open_lake())
        verified.append("the lake")
    if as_json:
        show_json(
            {"certificate": document.name, "verified": verified, "faults": faults, "unsearched": document.unsearched}
        )
        return 1 if faults else 0
    for fault in faults:
        tell(fault)
    if document.unsearched:
        tell(f"{counted(document.unsearched, 'file')} could not be searched; the certificate lists them")
    verdict = "is not valid" if faults else "is valid"
    tell(f"{document.facts['erasure']}: the certificate {verdict}; verified: {', '.join(verified)}")
    return 1 if faults else 0


_COLUMNS = (*map(TextColumn, ("place", "where")), *numbers(("files", "rows or times")), TextColumn("such as"))


@click.group(cls=Group)
def erase() -> None:
    """Find the data of a person or a run, erase it, and prove the erasure.

    Nothing is removed before somebody approves the erasure.
    """


for _command in (plan, approve, apply, list_, certificate):
    erase.add_command(_command)


@erase.command()
@click.argument("values", metavar="VALUE...", nargs=-1, required=True)
@also_option
@lake_option
@spool_option
@json_option
@with_context
def find(context: Context, values: tuple[str, ...], folders: tuple[Path, ...], *, as_json: bool) -> int:
    """Search every file of the lake and the spool for VALUEs: names, addresses, names of runs.

    If VALUE is -, values are read from standard input, one per line, and stay out of process lists and shell history.
    Searches tables, old versions, logs, statistics, plans, quarantine, segments and packs, ignoring case, and also
    JSON, HTML, URLs, base64 and hex. Finds keys of subjects, but no hashes or pseudonyms of a value. Prints no value.
    Exits 1 if anything is found, or if a file could not be searched.
    """
    texts = subject_values(values)
    lake, spool = context.open_lake(), context.spool() if context.has_spool else None
    with progress_bar("search") as progress:
        result = search(lake, spool, texts, (*context.own_folders, *folders), progress=progress)
    result = replace(result, traces=(*result.traces, *key_traces(lake, texts)))
    if as_json:
        show_json(result.plain())
        return 0 if result.is_clean else 1
    _show_traces(result.traces)
    if result.unsearched:
        tell("could not be searched:")
        _show_traces(result.unsearched)
    places = counted(len({trace.place for trace in result.traces}), "kind") + " of places"
    tell(f"{counted(result.files, 'file')} searched: {f'found in {places}' if result.traces else 'nothing found'}")
    return 0 if result.is_clean else 1


@erase.command()
@lake_option
@json_option
@with_context
def keys(context: Context, *, as_json: bool) -> int:
    """Count the keys that columns of subjects are encrypted with: present, forgotten, damaged, lost.

    Exits 1 if a key is damaged or lost: restore its file from a backup, or erase its subject.
    """
    state = key_state(context.open_lake())
    if as_json:
        show_json(state.plain())
        return 0 if state.is_sound else 1
    for where, wrong, hint in state.faults:
        tell(f"{where}: {wrong}; {hint}")
    for column, rows in state.lost:
        tell(f"{column}: {counted(rows, 'row')} under lost keys; {LOST}")
    tell(f"{counted(state.keys, 'key')} of subjects, {state.forgotten:,} forgotten")
    return 0 if state.is_sound else 1


def _show_traces(traces: Iterable[Trace]) -> None:
    lines = [(item.place, item.where, f"{item.files:,}", f"{item.count:,}", item.examples[0]) for item in traces]
    if lines:
        tell(*table_lines(_COLUMNS, lines))
