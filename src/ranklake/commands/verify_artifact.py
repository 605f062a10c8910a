"""``ranklake verify-artifact``."""

import json

import click

from ranklake.artifacts import Verdict, recorded, verify
from ranklake.commands.options import configuration, json_option, lake_option
from ranklake.commands.progress import progress_bar
from ranklake.lake.store import Lake


@click.command("verify-artifact")
@click.argument("artifact", metavar="NAME|URI|PATH")
@click.option("--run", default="", help="Run that made it; default: whichever made one of this name last.")
@click.option("--at", metavar="URI", help="Where the bytes are now, if they were moved.")
@lake_option
@json_option
@click.pass_context
def verify_artifact(ctx: click.Context, artifact: str, *, run: str, at: str | None, lake: str, as_json: bool) -> int:
    """Hash an artifact again and compare with what was recorded when it was made.

    Exits 1 if the bytes differ, are gone, or were not hashed when they were recorded.
    """
    config = configuration(ctx)
    opened = Lake.open(lake, config.storage)
    row = recorded(opened, artifact, run)
    with progress_bar(f"hashing {row['name']}") as progress:
        verdict = verify(opened, row, at=at, progress=progress)
    _tell(verdict, as_json=as_json)
    return 0 if verdict.is_good else 1


def _tell(verdict: Verdict, *, as_json: bool) -> None:
    row, found = verdict.row, verdict.found
    if as_json:
        facts = {key: row[key] for key in ("run", "attempt", "name", "kind", "bytes", "file_count")}
        digests = {"recorded_sha256": row["sha256"], "found_sha256": found.sha256 if found else None}
        told = {"uri": verdict.place, "ts": row["ts"].isoformat(), "verified": verdict.is_good, "verdict": verdict.said}
        click.echo(json.dumps({**facts, **digests, **told}))
    else:
        click.echo(f"{row['name']} of run {row['run']}, {row['bytes'] or 0:,} bytes at {verdict.place}: {verdict.said}")
