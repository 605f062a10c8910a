"""Verifies recorded artifacts by hashing them again."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ranklake.allowed import AllowedPlaces
from ranklake.capture.assets.merkle_digest import MerkleDigest, merkle_digest
from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.audit import trail as audit
from ranklake.lake.contracts.json_text import facts_in
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.store import Store
from ranklake.redaction.redact import redact_uri
from ranklake.segments.storage_options import fsspec_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ranklake.capture.assets.merkle_digest import Progress

VERIFIED = "verified"
_FIND = """
SELECT run, attempt, name, kind, uri, bytes, file_count, sha256, ts
FROM artifacts
WHERE action = 'created' AND (name = $name OR uri = $uri OR uri = $path) AND ($run = '' OR run = $run)
ORDER BY ts DESC LIMIT 1
"""


_PRESENT = """
SELECT run, attempt, name, kind, uri, bytes, file_count, sha256, ts, action,
  row_number() OVER (PARTITION BY run, uri ORDER BY ts DESC) AS place
FROM artifacts
WHERE action IN ('created', 'deleted') AND ($run = '' OR run = $run)
"""
_VERIFIED = "SELECT details, max(ts) AS ts FROM audit WHERE action = 'artifact.verify' GROUP BY details ORDER BY ts"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of hashing an artifact again.

    Attributes
    ----------
    row
        The artifact's record: run, attempt, name, kind, uri, bytes, file_count, sha256, ts.
    place
        Location that was read, without credentials.
    status
        `VERIFIED`, or the fault.
    digest
        Digest of the bytes there; None if there are none.
    """

    row: dict[str, Any]
    place: str
    status: str
    digest: MerkleDigest | None

    @property
    def is_good(self) -> bool:
        """Whether the bytes are those that were recorded."""
        return self.status == VERIFIED


def verify(
    store: Store,
    row: dict[str, Any],
    allow: AllowedPlaces,
    *,
    at: str | None = None,
    progress: "Progress | None" = None,
) -> Verdict:
    """Hash the artifact of a row of `last_record`, at its recorded place or at another one.

    Raises `ranklake.allowed.NotAllowedError` if the place may not be opened, and errors of its store. A missing
    artifact is a verdict.
    """
    place = at or row["uri"] or ""
    if not place:
        return Verdict(row, "", "nobody says where it is", None)
    if not row["sha256"]:
        return Verdict(row, redact_uri(place), "the recorder took no digest of it", None)
    allow.check(place)
    options = fsspec_options(place, store.storage) if "://" in place else {}
    try:
        result = merkle_digest(place, storage_options=options, progress=progress)
    except FileNotFoundError:
        return Verdict(row, redact_uri(place), "it is gone", None)
    return Verdict(row, redact_uri(place), _verdict(row, result), result)


def longest_unverified(lake: Lake, run: str) -> list[dict[str, Any]]:
    """Return artifacts that should still exist, as recorded, the longest unverified first.

    Rows are like those of `last_record`, of one run or of all. Deleted artifacts and those without a digest are left
    out.
    """
    rows, last = _present(lake, run), _verification_times(lake)
    never: tuple[datetime, dict[str, Any]] = (datetime.min.replace(tzinfo=UTC), {})
    rows.sort(key=lambda row: (last.get((row["run"], row["name"], row["sha256"]), never)[0], row["ts"]))
    return rows


def last_verdicts(lake: Lake) -> list[dict[str, Any]]:
    """Return run, name, last ``verified`` and ``verdict`` of artifacts that should still exist, if any."""
    last = _verification_times(lake)
    never: tuple[None, dict[str, Any]] = (None, {})
    return [
        {"run": row["run"], "name": row["name"], "verified": details.get("verified"), "verdict": details.get("verdict")}
        for row in _present(lake, "")
        for _, details in [last.get((row["run"], row["name"], row["sha256"]), never)]
    ]


def _present(lake: Lake, run: str) -> list[dict[str, Any]]:
    statement = f"SELECT * FROM ({_PRESENT}) WHERE place = 1 AND action = 'created' AND sha256 IS NOT NULL"  # noqa: S608
    return list(query(lake, statement, {"run": run}).to_pylist())


def _verification_times(lake: Lake) -> dict[tuple[object, ...], tuple[datetime, dict[str, Any]]]:
    """Return the time and the result of each artifact's last verification, by run, name and digest."""
    last: dict[tuple[object, ...], tuple[datetime, dict[str, Any]]] = {}
    for item in query(lake, _VERIFIED).to_pylist():
        details = facts_in(item["details"])
        last[tuple(details.get(name) for name in ("run", "name", "recorded_sha256"))] = item["ts"], details
    return last


def note(lake: Lake, verdicts: "Sequence[Verdict]", by: str) -> None:
    """Append the verified artifacts and their results to the audit log in one commit."""
    audit.record_all(lake, [_entry(verdict, by) for verdict in verdicts])


def _entry(verdict: Verdict, by: str) -> audit.Entry:
    row, result = verdict.row, verdict.digest
    details = {key: row[key] for key in ("run", "attempt", "name", "kind")} | {
        "recorded_ts": row["ts"].isoformat(),
        "recorded_sha256": row["sha256"],
        "found_sha256": None if result is None else result.sha256,
        "verified": verdict.is_good,
        "verdict": verdict.status,
    }
    return audit.Entry(by, "artifact.verify", verdict.place, None, details)


def last_record(lake: Lake, artifact: str, run: str) -> dict[str, Any]:
    """Return the row of an artifact's last creation. Raises `RanklakeError` if none is recorded."""
    path = artifact if "://" in artifact else os.path.abspath(artifact)  # noqa: PTH100 - as it was recorded: links stay
    known = {"name": artifact, "uri": redact_uri(artifact), "path": path, "run": run}
    result: list[dict[str, Any]] = query(lake, _FIND, known).to_pylist()
    if not result:
        names = query(lake, "SELECT DISTINCT name FROM artifacts ORDER BY name LIMIT 10000").column("name").to_pylist()
        hint = (
            did_you_mean(artifact, names)
            or 'ranklake sql "SELECT run, name, uri FROM artifacts" shows what is recorded'
        )
        raise RanklakeError("no such artifact is recorded", where=redact_uri(artifact), hint=hint)
    return result[0]


def _verdict(row: dict[str, Any], digest: MerkleDigest) -> str:
    if digest.unreadable:
        return f"{digest.unreadable_count} files cannot be read: {next(iter(digest.unreadable.values()))}"
    if digest.sha256 == row["sha256"]:
        return VERIFIED
    if digest.size_bytes != row["bytes"]:
        return f"it has {digest.size_bytes} bytes in place of {row['bytes']}"
    return "its bytes are not those that were recorded"
