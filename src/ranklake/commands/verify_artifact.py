"""``ranklake verify-artifact``."""

import getpass
import os

import click
from deltalake.exceptions import DeltaError

from ranklake.allowed import allowed
from ranklake.artifacts import Verdict, note, recorded, verify
from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.views.json_output import show_json
from ranklake.views.progress import progress_bar


@click.command("verify-artifact")
@click.argument("artifact", metavar="NAME|URI|PATH")
@click.option("--run", default="", help="Run that made it; default: the last run that made one of this name.")
@click.option("--at", metavar="URI", help="Where the bytes are now, if they moved.")
@click.option("--by", default=None, metavar="NAME", help="Who does it; default: the user of this process.")
@lake_option
@json_option
@with_context
def verify_artifact(context: Context, artifact: str, *, run: str, at: str | None, by: str | None, as_json: bool) -> int:
    """Hash an artifact again and compare it with the digest recorded when it was made.

    The audit trail records what was verified, and the result. A recorded location is opened only if it is named here,
    is in the lake or the spool, or is allowed by [artifacts] allow in ranklake.toml. Exits 1 if the bytes differ, are
    gone, or were not hashed when they were recorded.
    """
    lake = context.open_lake()
    row = recorded(lake, artifact, run)
    own = (lake.uri, context.config.spool.uri)
    typed = (artifact, os.path.abspath(artifact), at or "")  # noqa: PTH100 - as it was recorded: links stay
    allow = allowed((*context.config.artifacts.allow, *own), typed)
    with progress_bar(f"hashing {row['name']}") as progress:
        verdict = verify(lake, row, allow, at=at, progress=progress)
    _tell(verdict, as_json=as_json)
    try:
        note(lake, verdict, by or _user())
    except (RanklakeError, DeltaError, OSError) as error:  # the verdict stands: whoever asks may read the lake alone
        click.echo(f"ranklake: the audit trail has no row of it: {type(error).__name__}: {error}", err=True)
    return 0 if verdict.is_good else 1


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container that knows no name for it
        return f"uid {os.getuid()}"


def _tell(verdict: Verdict, *, as_json: bool) -> None:
    row, found = verdict.row, verdict.found
    if as_json:
        facts = {key: row[key] for key in ("run", "attempt", "name", "kind", "bytes", "file_count")}
        digests = {"recorded_sha256": row["sha256"], "found_sha256": found.sha256 if found else None}
        told = {"uri": verdict.place, "ts": row["ts"].isoformat(), "verified": verdict.is_good, "verdict": verdict.said}
        show_json({**facts, **digests, **told})
    else:
        click.echo(f"{row['name']} of run {row['run']}, {row['bytes'] or 0:,} bytes at {verdict.place}: {verdict.said}")
