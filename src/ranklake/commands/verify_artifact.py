"""``ranklake verify-artifact``."""

import getpass
import os
import sys
from typing import TYPE_CHECKING, Any

import click
from deltalake.exceptions import DeltaError

from ranklake.allowed import allowed_places
from ranklake.artifacts import Verdict, last_record, longest_unverified, note, verify
from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.printable import counted
from ranklake.rehash import RehashResult, rehash
from ranklake.views.json_output import show_json
from ranklake.views.tell import progress_bar, tell

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


@click.command("verify-artifact")
@click.argument("artifact", metavar="[NAME|URI|PATH]", required=False)
@click.option(
    "--all", "every", is_flag=True, help="Verify all artifacts that should exist, the longest unverified first."
)
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="With --all: most artifacts.")
@click.option("--max-bytes", type=click.IntRange(1), help="With --all: most recorded bytes, but at least one artifact.")
@click.option("--run", default="", help="Run that made it; default: the last run that made one of this name.")
@click.option("--at", metavar="URI", help="Where the bytes are now, if they moved.")
@click.option("--by", default=None, metavar="NAME", help="Who verifies; default: the user of this process.")
@lake_option
@json_option
@with_context
def verify_artifact(  # noqa: PLR0913 - its options
    context: Context,
    artifact: str | None,
    *,
    every: bool,
    limit: int,
    max_bytes: int | None,
    run: str,
    at: str | None,
    by: str | None,
    as_json: bool,
) -> int:
    """Hash artifacts again and compare them with the digests recorded when they were made.

    The audit log records what was verified, and the result. A recorded location is opened only if it is given here,
    lies in the lake or the spool, or is allowed by [artifacts] allow in ranklake.toml. Exits 1 if the bytes differ, are
    missing, or were not hashed when recorded, or if no artifact may be opened. With --all each call starts with the
    longest unverified, so that scheduled or interrupted calls reach all of them.
    """
    if every == bool(artifact) or (every and at):
        raise click.UsageError(
            "name an artifact; or write --all, without a name and --at: all where they were recorded"
        )
    lake = context.open_lake()
    own = (lake.uri, context.config.spool.uri)
    typed = () if artifact is None else (artifact, os.path.abspath(artifact), at or "")  # noqa: PTH100 - links stay
    allow = allowed_places((*context.config.artifacts.allow, *own), typed)

    def noted(verdicts: list[Verdict]) -> None:
        try:
            note(lake, verdicts, by or _user())
        except (
            RanklakeError,
            DeltaError,
            OSError,
        ) as error:  # the results are valid: the user may lack the right to write to the lake
            tell(f"ranklake: the audit log has no row of it: {type(error).__name__}: {error}", err=True)

    if artifact is None:
        rows = longest_unverified(lake, run)
        result = rehash(
            lake.store, rows, allow, noted, limit=limit, most_bytes=max_bytes or sys.maxsize, progress=_hashing
        )
        _tell_all(result, as_json=as_json)
        return 0 if not result.wrong and (result.verdicts or not result.closed) else 1
    row = last_record(lake, artifact, run)
    with _hashing(row["name"]) as progress:
        verdict = verify(lake.store, row, allow, at=at, progress=progress)
    noted([verdict])
    if as_json:
        show_json(_plain(verdict))
    else:
        tell(_line(verdict))
    return 0 if verdict.is_good else 1


def _hashing(name: str) -> "AbstractContextManager[Callable[[int, int], None] | None]":
    return progress_bar(f"hashing {name}")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a name for this user
        return f"uid {os.getuid()}"


def _tell_all(done: RehashResult, *, as_json: bool) -> None:
    if as_json:
        names = [{"run": row["run"], "name": row["name"]} for row in done.closed]
        verified = [_plain(one) for one in done.verdicts]
        show_json({"verified": verified, "not_allowed": names, "waiting": done.waiting})
        return
    for verdict in done.verdicts:
        tell(_line(verdict))
    wait = f"; {done.waiting:,} wait for the next call" if done.waiting else ""
    tell(f"{counted(len(done.verdicts), 'artifact')} hashed again, {len(done.wrong):,} not as recorded{wait}")
    if done.closed:
        many = counted(len(done.closed), "artifact")
        tell(f"{many} not opened: allow their places by [artifacts] allow in ranklake.toml")


def _line(verdict: Verdict) -> str:
    row = verdict.row
    return f"{row['name']} of run {row['run']}, {row['bytes'] or 0:,} bytes at {verdict.place}: {verdict.status}"


def _plain(verdict: Verdict) -> dict[str, Any]:
    row, digest = verdict.row, verdict.digest
    facts = {key: row[key] for key in ("run", "attempt", "name", "kind", "bytes", "file_count")}
    digests = {"recorded_sha256": row["sha256"], "found_sha256": digest.sha256 if digest else None}
    details = {
        "uri": verdict.place,
        "ts": row["ts"].isoformat(),
        "verified": verdict.is_good,
        "verdict": verdict.status,
    }
    return {**facts, **digests, **details}
