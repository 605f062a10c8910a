"""``ranklake verify-artifact``."""

import json
import os
from typing import Any

import click

from ranklake.capture.fingerprint import Fingerprint, fingerprint
from ranklake.commands.options import configuration, json_option, lake_option
from ranklake.commands.progress import progress_bar
from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.contracts.redact import redact_uri
from ranklake.lake.contracts.storage import fsspec_options
from ranklake.lake.query import query
from ranklake.lake.store import Lake

_FIND = """
SELECT run, attempt, name, kind, uri, bytes, file_count, sha256, ts
FROM artifacts
WHERE action = 'created' AND (name = $name OR uri = $uri OR uri = $path) AND ($run = '' OR run = $run)
ORDER BY ts DESC LIMIT 1
"""


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
    row = _recorded(Lake.open(lake, config.storage), artifact, run)
    place = at or row["uri"]
    verdict, found = "the recorder took no digest of it", None
    if row["sha256"]:
        try:
            with progress_bar(f"hashing {row['name']}") as progress:
                options = fsspec_options(place, config.storage) if "://" in place else {}
                found = fingerprint(place, storage_options=options, progress=progress)
        except FileNotFoundError:
            verdict = "it is gone"
        else:
            verdict = _verdict(row, found)
    _tell(row, redact_uri(place), verdict, found, as_json=as_json)
    return 0 if verdict == "verified" else 1


def _recorded(lake: Lake, artifact: str, run: str) -> dict[str, Any]:
    """Return the last row that tells of the making of an artifact; raise if there is none."""
    path = artifact if "://" in artifact else os.path.abspath(artifact)  # noqa: PTH100 - as it was recorded: links stay
    known = {"name": artifact, "uri": redact_uri(artifact), "path": path, "run": run}
    found: list[dict[str, Any]] = query(lake, _FIND, known).to_pylist()
    if not found:
        names = query(lake, "SELECT DISTINCT name FROM artifacts ORDER BY name LIMIT 10000").column("name").to_pylist()
        hint = (
            did_you_mean(artifact, names)
            or 'ranklake sql "SELECT run, name, uri FROM artifacts" shows what is recorded'
        )
        raise RanklakeError("no such artifact is recorded", where=redact_uri(artifact), mend=hint)
    return found[0]


def _verdict(row: dict[str, Any], found: Fingerprint) -> str:
    if found.unreadable:
        return f"{found.unreadable_count} files cannot be read: {next(iter(found.unreadable.values()))}"
    if found.sha256 == row["sha256"]:
        return "verified"
    if found.size_bytes != row["bytes"]:
        return f"it has {found.size_bytes} bytes in place of {row['bytes']}"
    return "its bytes are not those that were recorded"


def _tell(row: dict[str, Any], place: str, verdict: str, found: Fingerprint | None, *, as_json: bool) -> None:
    if as_json:
        facts = {key: row[key] for key in ("run", "attempt", "name", "kind", "bytes", "file_count")}
        digests = {"recorded_sha256": row["sha256"], "found_sha256": found.sha256 if found else None}
        moment = row["ts"].isoformat()
        told = {**facts, **digests, "uri": place, "ts": moment, "verified": verdict == "verified", "verdict": verdict}
        click.echo(json.dumps(told))
    else:
        click.echo(f"{row['name']} of run {row['run']}, {row['bytes'] or 0:,} bytes at {place}: {verdict}")
