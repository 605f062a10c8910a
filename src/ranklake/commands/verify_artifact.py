"""``ranklake verify-artifact``."""

import getpass
import os
from typing import Any

import click
from deltalake.exceptions import DeltaError

from ranklake.allowed import NotAllowedError, allowed
from ranklake.artifacts import Verdict, longest_unverified, note, recorded, verify
from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.redaction.redact import redact_uri
from ranklake.views.json_output import show_json
from ranklake.views.progress import progress_bar
from ranklake.views.tell import tell
from ranklake.views.words import counted


@click.command("verify-artifact")
@click.argument("artifact", metavar="[NAME|URI|PATH]", required=False)
@click.option("--all", "every", is_flag=True, help="Verify all that should be there, those first that wait longest.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="With --all: so many at most.")
@click.option("--run", default="", help="Run that made it; default: the last run that made one of this name.")
@click.option("--at", metavar="URI", help="Where the bytes are now, if they moved.")
@click.option("--by", default=None, metavar="NAME", help="Who does it; default: the user of this process.")
@lake_option
@json_option
@with_context
def verify_artifact(
    context: Context,
    artifact: str | None,
    *,
    every: bool,
    limit: int,
    run: str,
    at: str | None,
    by: str | None,
    as_json: bool,
) -> int:
    """Hash artifacts again and compare them with the digests recorded when they were made.

    The audit trail records what was verified, and the result. A recorded location is opened only if it is named here,
    is in the lake or the spool, or is allowed by [artifacts] allow in ranklake.toml. Exits 1 if the bytes differ, are
    gone, or were not hashed when they were recorded, or if none of several may be opened. With --all each call goes on
    with those that wait longest, so that a schedule comes to all of them.
    """
    if every == bool(artifact) or (every and at):
        raise click.UsageError(
            "name an artifact; or write --all, without a name and --at: all where they were recorded"
        )
    lake = context.open_lake()
    rows = longest_unverified(lake, run) if artifact is None else [recorded(lake, artifact, run)]
    own = (lake.uri, context.config.spool.uri)
    typed = () if artifact is None else (artifact, os.path.abspath(artifact), at or "")  # noqa: PTH100 - links stay
    allow = allowed((*context.config.artifacts.allow, *own), typed)
    verdicts: list[Verdict] = []
    closed: list[dict[str, Any]] = []
    for row in rows:
        if (
            len(verdicts) == limit
        ):  # those that may not be opened wait for ever: they must not keep others from their turn
            break
        try:
            with progress_bar(f"hashing {row['name']}") as progress:
                verdicts.append(verify(lake, row, allow, at=at, progress=progress))
        except NotAllowedError:
            if not every:
                raise
            closed.append(row)
        except (RanklakeError, OSError) as error:  # one store that fails hides no other artifact
            if not every:
                raise
            verdicts.append(Verdict(row, redact_uri(row["uri"]), f"it cannot be read ({type(error).__name__})", None))
    _tell(verdicts, closed, every=every, as_json=as_json)
    try:
        note(lake, verdicts, by or _user())
    except (RanklakeError, DeltaError, OSError) as error:  # the verdict stands: whoever asks may read the lake alone
        click.echo(f"ranklake: the audit trail has no row of it: {type(error).__name__}: {error}", err=True)
    return 0 if all(one.is_good for one in verdicts) and (verdicts or not closed) else 1


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container that knows no name for it
        return f"uid {os.getuid()}"


def _tell(verdicts: list[Verdict], closed: list[dict[str, Any]], *, every: bool, as_json: bool) -> None:
    if as_json and not every:
        show_json(_plain(verdicts[0]))
        return
    if as_json:
        names = [{"run": row["run"], "name": row["name"]} for row in closed]
        show_json({"verified": [_plain(one) for one in verdicts], "not_allowed": names})
        return
    for one in verdicts:
        row = one.row
        tell(f"{row['name']} of run {row['run']}, {row['bytes'] or 0:,} bytes at {one.place}: {one.said}")
    if every:
        wrong = sum(not one.is_good for one in verdicts)
        tell(f"{counted(len(verdicts), 'artifact')} hashed again, {wrong:,} not as recorded")
    if closed:
        tell(f"{counted(len(closed), 'artifact')} not opened: allow their places by [artifacts] allow in ranklake.toml")


def _plain(one: Verdict) -> dict[str, Any]:
    row, found = one.row, one.found
    facts = {key: row[key] for key in ("run", "attempt", "name", "kind", "bytes", "file_count")}
    digests = {"recorded_sha256": row["sha256"], "found_sha256": found.sha256 if found else None}
    told = {"uri": one.place, "ts": row["ts"].isoformat(), "verified": one.is_good, "verdict": one.said}
    return {**facts, **digests, **told}
