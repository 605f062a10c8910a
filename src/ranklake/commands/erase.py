"""``ranklake erase``."""

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import click

from ranklake.commands.context import with_context
from ranklake.commands.erase_steps import SubjectOptions, apply, approve, given_values, list_, plan, whom_options
from ranklake.commands.options import Group, json_option, lake_option, optional_lake, spool_option
from ranklake.context import Context
from ranklake.printable import counted
from ranklake.retention.erasure.certificate import (
    Certificate,
    NoCertificateError,
    certificates,
    verify_alone,
    verify_signatures,
    verify_with_lake,
)
from ranklake.retention.erasure.plan import key_traces
from ranklake.retention.erasure.search import Trace, search
from ranklake.retention.subjects.store import LOST, key_state
from ranklake.views.json_output import show_json
from ranklake.views.progress import progress_bar
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell


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
