"""Artifacts by name and alias: finds them, copies them into the lake by content, fetches them, and lists their uses.

    RUN/NAME:ALIAS ──▶ row of ``artifacts`` ──copy──▶ <lake>/artifacts/<sha256> ──fetch──▶ a file or folder here

NAME is an artifact's name, or its kind (``checkpoint``); ALIAS is a tag, or ``latest``, which the newest always has.
`ranklake.retention.copies` decides when copies are deleted.
"""

import hashlib
import os
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from ranklake.capture.assets.artifacts import AtomicWrite
from ranklake.capture.assets.file_entries import local_entries, remote_entries
from ranklake.capture.assets.merkle_digest import merkle_digest
from ranklake.capture.lanes.series import check_name
from ranklake.errors import RanklakeError, did_you_mean
from ranklake.insight.runs.asking import Ask, Row
from ranklake.insight.runs.find import find_run
from ranklake.lake.query.literal import literal
from ranklake.lake.store.files import delete
from ranklake.redaction.redact import redact_uri
from ranklake.retention.copies import FOLDER, LISTING, listed_files, referenced_digests, sweep_copies
from ranklake.segments.storage_options import fsspec_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ranklake.allowed import AllowedPlaces
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store

LATEST: Final = "latest"
MOST_BYTES: Final = 2 << 30
"""Largest artifact that is copied by default: copying and backup hold a whole file in memory."""
_CHUNK_BYTES: Final = 1 << 20
_MADE: Final = """SELECT run, attempt, name, kind, uri, bytes, file_count, sha256, step, ts
FROM artifacts
WHERE run = {run} AND action = 'created' AND ({names})
ORDER BY ts DESC"""
_TAGGED: Final = """SELECT name, kind, tag, sha256 FROM (
  SELECT name, kind, tag, sha256, action,
    row_number() OVER (PARTITION BY kind, tag ORDER BY ts DESC, segment DESC, slot DESC) AS place
  FROM artifacts WHERE run = {run} AND action IN ('tagged', 'untagged')
) WHERE place = 1 AND action = 'tagged'"""
_USES: Final = """SELECT run, attempt, rank, ts, action, name, kind, step, verified
FROM artifacts
WHERE (sha256 = {sha256} OR expected_sha256 = {sha256} OR strpos(inputs, {sha256}) > 0)
  AND NOT (run = {run} AND action = 'created' AND sha256 = {sha256}) AND action NOT IN ('tagged', 'untagged')
ORDER BY ts, run, rank"""


class NoSuchArtifactError(RanklakeError):
    """A run has no artifact of this name or alias."""


class CopyError(RanklakeError):
    """An artifact cannot be copied or fetched. Only complete files are left at the target."""


@dataclass(frozen=True, slots=True)
class TransferResult:
    """Result of copying or fetching an artifact.

    Attributes
    ----------
    row
        The artifact.
    place
        Its location now.
    files, written_bytes
        Its files, and the bytes written; 0 if all existed already.
    """

    row: Row
    place: str
    files: int
    written_bytes: int


def run_with_artifacts(ask: Ask, text: str) -> str:
    """Return the run with a name, even before rollups, if it made artifacts. Raises `NoSuchRunError`."""
    is_known = ask(f"SELECT run FROM artifacts WHERE run = {literal(text)} LIMIT 1").rows  # noqa: S608 - quoted
    return text if is_known else find_run(ask, text)


def artifacts_of(ask: Ask, run: str, name: str = "") -> list[dict[str, Any]]:
    """Return a run's artifacts of a name or kind, or all: newest first, each with its ``aliases``."""
    names = f"name = {literal(name)} OR kind = {literal(name)}" if name else "TRUE"
    holders: dict[tuple[str, str, str | None], list[str]] = {}
    for row in ask(_TAGGED.format(run=literal(run))).rows:
        holders.setdefault((row["kind"], row["name"], row["sha256"]), []).append(row["tag"])
    newest: set[tuple[str, str]] = set()
    artifacts = []
    for row in ask(_MADE.format(run=literal(run), names=names)).seen().rows:
        keys = dict.fromkeys((row["kind"], row["name"], sha256) for sha256 in (row["sha256"], None))
        tags = sorted(tag for key in keys for tag in holders.pop(key, []))  # at these bytes, or the newest of the name
        artifacts.append({**row, "aliases": [*tags, *([LATEST] if row["kind"] not in newest else [])]})
        newest.add(row["kind"])
    return artifacts


def find_artifact(ask: Ask, reference: str) -> dict[str, Any]:
    """Return the artifact that ``RUN/NAME:ALIAS`` names; without an alias, the newest.

    Raises `NoSuchArtifactError`, and `ranklake.insight.runs.find.NoSuchRunError`.
    """
    run_text, slash, rest = reference.partition("/")
    if not (run_text and slash and rest):
        raise NoSuchArtifactError("names no artifact", where=reference, hint="write RUN/NAME or RUN/NAME:ALIAS")
    run = run_with_artifacts(ask, run_text)
    artifacts = artifacts_of(ask, run)
    known = {row["name"] for row in artifacts} | {row["kind"] for row in artifacts}
    name, colon, alias = (rest, "", "") if rest in known else rest.rpartition(":")
    if not colon:
        name = rest
    named = [row for row in artifacts if name in {row["name"], row["kind"]}]
    if not named:
        hint = did_you_mean(name, known) or f"'ranklake artifacts list {run}' shows them"
        raise NoSuchArtifactError(f"the run has no artifact {name!r}", where=run, hint=hint)
    if alias in {"", LATEST}:
        return named[0]
    for row in named:
        if alias in row["aliases"]:
            return row
    hint = did_you_mean(alias, {LATEST, *(tag for row in named for tag in row["aliases"])})
    raise NoSuchArtifactError(f"no artifact {name!r} has the alias {alias!r}", where=run, hint=hint)


def alias_rows(
    row: "Mapping[str, Any]", aliases: "Iterable[str]", removed: "Iterable[str]" = ()
) -> list[dict[str, Any]]:
    """Return rows of ``artifacts`` that add and remove aliases of an artifact, for exactly its bytes if they are known.

    Raises `RefusedError` for an invalid name, and `NoSuchArtifactError` for ``latest`` and for an alias that it lacks.
    """
    facts = {name: row[name] for name in ("name", "kind", "step", "sha256")}
    rows: list[dict[str, Any]] = []
    for alias in removed:
        if alias not in row["aliases"] or alias == LATEST:
            hint = did_you_mean(alias, {*row["aliases"]} - {LATEST}) or "'ranklake artifacts list' shows them"
            raise NoSuchArtifactError(f"it has no alias {alias!r}", where=row["name"], hint=hint)
        rows.append({**facts, "action": "untagged", "tag": alias})
    for alias in aliases:
        name = check_name(alias)
        if name == LATEST or not {":", "/"}.isdisjoint(name):
            hint = "the newest has it by itself" if name == LATEST else "leave : and / out of it"
            raise NoSuchArtifactError(f"{name!r} cannot be an alias", where=row["name"], hint=hint)
        rows.append({**facts, "action": "tagged", "tag": name})
    return rows


def uses_of(ask: Ask, row: Row) -> tuple[Row, ...]:
    """Return the uses of an artifact, oldest first: loads of its bytes in any run, and artifacts made from it."""
    if not row["sha256"]:
        return ()
    return ask(_USES.format(sha256=literal(row["sha256"]), run=literal(row["run"]))).seen().rows


def is_copied(store: "Store", row: Row) -> bool:
    """Whether the lake has all files of an artifact, in their recorded sizes."""
    return _copied_files(store, row) is not None


def _copied_files(store: "Store", row: Row) -> dict[str, str] | None:
    """Return the digests of an artifact's copied files by path (a single file's is ""); None if the copy is incomplete.

    A folder and a file with that folder's listing as content have the same digest; the row tells them apart.
    """
    sha256 = row["sha256"]
    if not sha256:
        return None
    files, listing_bytes = listed_files(store, sha256)
    if files is None or (row["file_count"], row["bytes"]) == (1, listing_bytes):
        files = {"": sha256}
    sizes = [_size_bytes(store, digest) for digest in files.values()]
    known = [size for size in sizes if size is not None]
    is_whole = len(known) == len(sizes) and row["bytes"] in {None, sum(known)}
    return files if is_whole else None


def _size_bytes(store: "Store", digest: str) -> int | None:
    try:
        return int(store.fs.info(store.path(FOLDER, digest))["size"])
    except FileNotFoundError:
        return None


def copy(
    lake: "Lake", row: Row, allow: "AllowedPlaces", *, at: str | None = None, most_bytes: int = MOST_BYTES
) -> TransferResult:
    """Copy files that the lake lacks, verifying each before it gets its name. Can be repeated.

    Parameters
    ----------
    at
        Its present location, if it was moved after recording.

    Raises `CopyError` if it differs from the record or is too large, `ranklake.allowed.NotAllowedError`, and errors of
    the stores. If killed, it leaves complete files and scratch files; the next call continues, and upkeep deletes
    scratch files.
    """
    place, sha256 = at or row["uri"] or "", row["sha256"]
    if not sha256:
        raise CopyError("its recorder took no digest, so that no copy could be verified", where=row["name"])
    if is_copied(lake.store, row):
        return TransferResult(row, lake.store.path(FOLDER, sha256), row["file_count"] or 1, 0)
    if not place:
        raise CopyError("its place was not recorded", where=row["name"], hint="name it with --at")
    allow.check(place)
    if (row["bytes"] or 0) > most_bytes:
        hint = f"allow so many by --max-bytes {row['bytes']}"
        raise CopyError(f"it has {row['bytes']:,} bytes, above {most_bytes:,}", where=row["name"], hint=hint)
    with _vanishing(place):
        opened, files, listing = _recorded_files(lake.store, place, sha256, allow)
    if sha256 != files.get(""):  # first, so that a sweep in between spares the files that it lists
        lake.store.put_if_absent(f"{FOLDER}/{sha256}{LISTING}", listing)
    written = 0
    for path, digest in files.items():
        if not _is_sound(lake.store, digest):
            with _vanishing(place), opened(path) as source:
                written += _put_verified(lake.store, digest, source, f"{redact_uri(place)} {path}".strip())
    if sha256 not in referenced_digests(lake):  # it was erased during the copy
        sweep_copies(lake)
        raise CopyError("its row is gone from the lake by now, and so is the copy", where=row["name"])
    return TransferResult(row, lake.store.path(FOLDER, sha256), len(files), written)


def fetch(lake: "Lake", row: Row, target: Path, allow: "AllowedPlaces") -> TransferResult:
    """Fetch an artifact from its copy in the lake, else from its place, and verify each file.

    Does nothing if the target holds the artifact already. Raises `CopyError` if it holds anything else, or if the bytes
    differ from the record: then the target stays empty. Raises also `NotAllowedError`.
    """
    sha256, store = row["sha256"], lake.store
    if os.path.lexists(target):
        if sha256 and merkle_digest(target).sha256 == sha256:
            return TransferResult(row, str(target), row["file_count"] or 1, 0)
        raise CopyError("is there, and is not this artifact", where=str(target), hint="name another place by --to")
    files = _copied_files(store, row)
    if files is not None:
        open_copy = partial(store.fs.open, mode="rb")
        sources = {path: partial(open_copy, store.path(FOLDER, digest)) for path, digest in files.items()}
    else:
        if not row["uri"]:
            raise CopyError("it is not copied, and its place was not recorded", where=row["name"])
        with _vanishing(row["uri"]):
            opened, entries = _source(store, row["uri"], allow)
            sources = {entry.path: partial(opened, entry.path) for entry in entries}
    writing = AtomicWrite(target.absolute())
    try:
        with _vanishing(row["uri"] or row["name"]):
            written = _write_files(sources, writing.temporary, row)
        writing.commit()
    except BaseException:
        writing.abandon()
        raise
    return TransferResult(row, str(target), len(sources), written)


def _recorded_files(
    store: "Store", place: str, sha256: str, allow: "AllowedPlaces"
) -> "tuple[Callable[[str], Any], dict[str, str], bytes]":
    """Return a function that opens a file of a place, digests by path, and the listing.

    Raises the errors of `_source`, and `CopyError` if the bytes differ from the record.
    """
    opened, entries = _source(store, place, allow)
    files = {}
    for entry in entries:
        if entry.hash is None:
            raise CopyError(f"{entry.path} cannot be read: {entry.reason}", where=redact_uri(place))
        files[entry.path] = entry.hash().digest.hex()
    lines = (f"{digest}  {path}\n" for path, digest in files.items())
    listing = "".join(lines).encode("utf-8", "surrogateescape")
    if sha256 != (files[""] if [*files] == [""] else hashlib.sha256(listing).hexdigest()):
        hint = "name with --at where it is now"
        raise CopyError("its bytes are not those that were recorded", where=redact_uri(place), hint=hint)
    if any("\n" in path or "\r" in path for path in files):
        raise CopyError("a name of a file in it has a line break", where=redact_uri(place))
    return opened, files, listing


def _write_files(sources: "Mapping[str, Callable[[], IO[bytes]]]", root: Path, row: Row) -> int:
    """Write files below a path, or the path itself, and verify them; return the number of bytes. Raises `CopyError`."""
    written = 0
    if not sources:
        root.mkdir()
    for path, open_source in sources.items():
        if path and (path.startswith("/") or {"", ".", ".."} & set(path.split("/"))):
            raise CopyError(f"a file of it has the name {path!r}, which leads out of it", where=row["name"])
        file = root / path if path else root
        file.parent.mkdir(parents=True, exist_ok=True)
        with open_source() as source, file.open("xb") as out:
            while chunk := source.read(_CHUNK_BYTES):
                written += out.write(chunk)
    if row["sha256"] and merkle_digest(root).sha256 != row["sha256"]:
        hint = f"'ranklake verify-artifact {row['name']} --run {row['run']}' tells what is wrong"
        raise CopyError("its bytes are not those that were recorded", where=row["name"], hint=hint)
    return written


def _source(store: "Store", place: str, allow: "AllowedPlaces") -> "tuple[Callable[[str], Any], Iterator[Any]]":
    """Return a function that opens a file below a place by its path, and all entries.

    Raises `FileNotFoundError` if the place does not exist, and `NotAllowedError` if the place, or a link in it, leads
    to a place that may not be opened.
    """
    allow.check(place)
    if "://" not in place:
        entries = list(local_entries(Path(place), None))
        for entry in entries:
            allow.check_within(place, entry.path)
        return (lambda path: Path(place, path).open("rb") if path else Path(place).open("rb")), iter(entries)
    from fsspec.core import url_to_fs  # imported for URIs only

    options = fsspec_options(place, store.storage)
    fs, root = url_to_fs(place, **options)
    fs.invalidate_cache()  # earlier listings of this process may be out of date
    entries = list(remote_entries(place, options))
    return (lambda path: fs.open(f"{root.rstrip('/')}/{path}" if path else root, "rb")), iter(entries)


@contextmanager
def _vanishing(place: str) -> "Iterator[None]":
    """Raise `CopyError` if a place, or a file below it, no longer exists."""
    try:
        yield
    except FileNotFoundError as error:
        raise CopyError("it is gone", where=redact_uri(place), hint="name with --at where it is now") from error


def _is_sound(store: "Store", digest: str) -> bool:
    """Whether a file's copy exists and is sound; a damaged copy is deleted."""
    path = store.path(FOLDER, digest)
    try:
        with store.fs.open(path, "rb") as file:
            is_sound = hashlib.file_digest(file, "sha256").hexdigest() == digest
    except FileNotFoundError:
        return False
    if not is_sound:
        delete(store, path)
    return is_sound


def _put_verified(store: "Store", digest: str, source: IO[bytes], where: str) -> int:
    """Write a file under its digest. Raises `CopyError` if its bytes have another digest."""
    data = source.read()
    if hashlib.sha256(data).hexdigest() != digest:
        raise CopyError("it changed while it was copied", where=where, hint="copy it again")
    store.put_if_absent(f"{FOLDER}/{digest}", data)
    return len(data)
