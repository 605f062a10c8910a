"""``ranklake erase certificate``: what an erasure did and left, to show and to verify."""

import hashlib
from pathlib import Path

import click

from ranklake.commands.context import with_context
from ranklake.commands.erase_steps import Whom, whom_options
from ranklake.commands.options import json_option, lake_option, optional_lake
from ranklake.context import Context
from ranklake.retention.erasure.certificate import (
    Certificate,
    NoCertificateError,
    certificates,
    verify_alone,
    verify_signatures,
    verify_with_lake,
)
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell
from ranklake.views.words import counted


@click.group()
def certificate() -> None:
    """Show and verify certificates of erasures."""


@certificate.command()
@click.argument("name", metavar="ERASURE")
@click.option("--out", metavar="FOLDER", type=click.Path(path_type=Path), help="Write it there, under its digest.")
@lake_option
@with_context
def show(context: Context, name: str, out: Path | None) -> None:
    """Print the newest certificate of an erasure, or write it into a folder."""
    found = certificates(context.open_lake(), name)
    if not found:
        hint = "apply it: ranklake erase apply"
        raise NoCertificateError("this erasure has no certificate yet", where=name, hint=hint)
    if out is None:
        click.echo(found[-1].raw.decode(), nl=False)  # noqa: TID251 - a document, as it is
        return
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{found[-1].name}.json"
    path.write_bytes(found[-1].raw)
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
    whom: Whom,
    with_lake: bool,
    as_json: bool,
) -> int:
    """Verify a certificate by itself, anywhere: digest, items, approvals, a search that found nothing.

    With an allowed-signers file signatures are verified; with VALUEs (or -, or --run) that it is about them; with the
    lake that its trail knows it, and that the files that went are gone. Exits 1 if anything is wrong.
    """
    raw = file.read_bytes()
    found = Certificate.parse(raw, str(file))
    named = file.name.removesuffix(".json")
    is_named = len(named) == len(found.name)
    faults = verify_alone(found, named if is_named else "")
    if hashlib.sha256(raw).hexdigest() != found.name:
        faults.append("its bytes are not those that were written")
    verified = ["the certificate by itself"]
    path = signers or context.lake_config.approvals.allowed_signers
    if path:
        faults += verify_signatures(found, path)
        verified.append("signatures")
    if whom.is_said:
        subject = whom.subject(found.facts["lake"])
        faults += [] if subject.sha256 == found.facts["subject"]["scrypt_sha256"] else ["it is about somebody else"]
        verified.append("the subject")
    if with_lake:
        faults += verify_with_lake(found, context.open_lake())
        verified.append("the lake")
    if as_json:
        show_json({"certificate": found.name, "verified": verified, "faults": faults, "unsearched": found.unsearched})
        return 1 if faults else 0
    for fault in faults:
        tell(fault)
    if found.unsearched:
        tell(f"{counted(found.unsearched, 'file')} could not be looked into; the certificate names them")
    said = "does not hold" if faults else "holds"
    tell(f"{found.facts['erasure']}: the certificate {said}; verified: {', '.join(verified)}")
    return 1 if faults else 0
