"""Probes of the places: store, conditional writes, lake, spool, and old versions of deleted objects in buckets."""

import importlib.util
import os
import urllib.parse
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from fsspec.implementations.local import LocalFileSystem

from ranklake.context import Context
from ranklake.doctor.examination import Finding, Patient, failed, not_known, ok, skipped, warning
from ranklake.doctor.machine import existing_parent, local_folders
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.store.files import bucket_lock, keeps_versions
from ranklake.lake.store.reachability import LakeUnreachableError, unsafe
from ranklake.lake.store.store import MARKER, Store
from ranklake.redaction.redact import redact_uri
from ranklake.segments.references import resolve_references
from ranklake.segments.storage_options import CLIENTS, ENDPOINTS


def versions(patient: Patient) -> Iterator[Finding]:
    """Report whether the buckets of lake and spool have versioning and object locks."""
    context = Context.of(patient.config)
    lake = context.open_lake()
    places = [(lake.fs, lake.store.root, redact_uri(lake.uri))]
    if context.has_spool:
        spool = context.spool()
        places += [(item.fs, item.root, redact_uri(item.uri)) for item in (spool, spool.fallback) if item is not None]
    for fs, root, shown in places:
        yield of_bucket(fs, root, shown)


def of_bucket(fs: object, root: str, shown: str) -> Finding:
    """Return the finding about deleted objects of one bucket."""
    keeps = keeps_versions(fs, root)
    if keeps is None:
        return not_known(f"whether the store keeps versions of deleted objects: {shown}", "ask whoever runs it")
    if not keeps:
        return ok(f"{shown}: the bucket keeps no versions of deleted objects")
    if lock := bucket_lock(fs, root):
        message = f"{shown}: the bucket locks {lock}: retention and erasures cannot delete objects earlier"
        return warning(message, "agree with the policies' owners; certificates list what stays, and until when")
    message = f"{shown}: the bucket keeps versions of deleted objects; retention and erasures delete them, too"
    return ok(f"{message}, with s3:ListBucketVersions and s3:DeleteObjectVersion")


_NO_BUCKET: Final = "make the bucket or container, or fix the URI"
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_FORBIDDEN: Final = frozenset({401, 403})


def store(patient: Patient) -> Iterator[Finding]:
    """Check that the lake's place can be read: client, network, credentials."""
    uri = patient.config.lake.uri
    if not uri:
        yield skipped("no lake configured", "set RANKLAKE_LAKE, or write uri under [lake] in ranklake.toml")
        return
    yield _no_client(uri) or _reachability(uri, patient)
    yield from _unencrypted_endpoints(patient)


def _unencrypted_endpoints(patient: Patient) -> Iterator[Finding]:
    """Yield endpoints that are reached without TLS: rows and credentials pass the network in clear."""
    environment = os.environ
    sections = {"[storage]": patient.config.storage, "[spool.fallback_storage]": patient.config.spool.fallback_storage}
    named = {
        f"{section} {name}": resolve_references({name: storage[name]})[name]
        for section, storage in sections.items()
        for name in ENDPOINTS
        if storage.get(name)
    }
    variables = {name.upper() for name in ENDPOINTS} | {"AWS_ENDPOINT_URL_S3"}
    named |= {f"${name}": environment[name] for name in sorted(variables) if environment.get(name)}
    for where, url in named.items():
        if not url.lower().startswith("http://"):
            continue
        if (urllib.parse.urlsplit(url).hostname or "") in _LOOPBACK:
            yield ok(f"{where} {redact_uri(url)}: unencrypted, on this machine alone")
            continue
        message = f"{where} {redact_uri(url)}: traffic there is unencrypted"
        if patient.config.lake.allow_http:
            yield ok(f"{message}; allowed by [lake] allow_http")
        else:
            hint = "serve the store by TLS, and write https://, or set allow_http = true under [lake]"
            yield failed(message, hint)


def _reachability(uri: str, patient: Patient) -> Finding:
    place = Store.at(uri, patient.config.storage)
    if place.is_local and (file := _file_in(place.root)):
        return _no_folder(file)
    try:
        place.fs.ls(place.root, detail=False)
    except FileNotFoundError:
        return ok(f"{redact_uri(uri)} answers, and is empty")
    except LakeUnreachableError as error:
        if error.status in _FORBIDDEN:  # without the right to list, other requests may still succeed
            place.fs.exists(place.path(MARKER))
        else:
            raise
    return ok(f"{redact_uri(uri)} can be read")


def conditional_writes(patient: Patient) -> Iterator[Finding]:
    """Check that the store refuses to overwrite on conditional writes, on which safe commits depend.

    Tries to write a lake's marker again. Without a lake, it uses a temporary file.
    """
    uri = patient.config.lake.uri
    place = Store.at(uri, patient.config.storage)
    try:
        yield _probe_write(place)
    except FileNotFoundError:
        yield failed(f"{redact_uri(uri)}: no such bucket or container", _NO_BUCKET)
    except LakeUnreachableError as error:
        yield warning(
            f"{error.where}: {error.what}", "give this user the right to write there, unless it only asks and reads"
        )


def _probe_write(place: Store) -> Finding:
    try:
        name, data = MARKER, bytes(place.fs.cat_file(place.path(MARKER)))
    except FileNotFoundError:
        if place.is_local:
            return _creatable(Path(place.root))
        name, data = f"{MARKER}.doctor-{uuid.uuid4().hex}", b"{}"  # a name that Lake.create accepts in an empty place
    try:
        if name != MARKER:
            place.put_if_absent(name, data)
        if place.overwrites(name, data):
            error = unsafe(redact_uri(place.uri))
            return failed(f"{error.where}: {error.what}", error.hint)
    finally:
        if name != MARKER:
            with suppress(FileNotFoundError):
                place.fs.rm_file(place.path(name))
    return ok("a folder, where links are refused over files" if place.is_local else "honoured")


def _creatable(folder: Path) -> Finding:
    parent = existing_parent(folder)
    if os.access(parent, os.W_OK | os.X_OK):
        return ok(f"{folder} can be made")
    return warning(f"{folder} cannot be made: {parent} cannot be written", "give this user the right to write there")


def lake(patient: Patient) -> Iterator[Finding]:
    """Check that there is a lake, of a version that this release supports."""
    context = Context.of(patient.config)
    uri = context.lake_uri
    place = Store.at(uri, patient.config.storage)
    if not place.fs.exists(place.path(MARKER)):
        message = f"{redact_uri(uri)} holds no lake"
        if _has_segments(patient):
            yield failed(
                f"{message}, and the spool holds segments",
                "if there was one, restore it from a backup; else 'ranklake ingest' makes it in an empty place",
            )
        else:
            yield skipped(f"{message} yet", "'ranklake ingest' makes it in an empty place")
        return
    context.open_lake()
    yield ok(redact_uri(uri))


def _has_segments(patient: Patient) -> bool:
    if not patient.config.spool.uri:
        return False
    result = Context.of(patient.config).spool()
    try:
        return bool(result.fs.ls(f"{result.root}/segments", detail=False))
    except FileNotFoundError:
        return False


def spool(patient: Patient) -> Iterator[Finding]:
    """Check that the spool, and its fallback if configured, can be listed."""
    uri, fallback_uri = patient.config.spool.uri, patient.config.spool.fallback_uri
    fallback_storage = patient.config.spool.fallback_storage
    if not uri:
        yield skipped("no spool configured", "set RANKLAKE_SPOOL, or write uri under [spool] in ranklake.toml")
        return
    missing = [finding for finding in map(_no_client, filter(None, (uri, fallback_uri))) if finding is not None]
    if missing:
        yield from missing
        return
    first = Context.of(patient.config).spool()
    yield from _listable(first)
    if first.fallback is not None:
        yield from _listable(first.fallback)
        if uri.partition("://")[1] and uri.split("/")[:3] == fallback_uri.split("/")[:3] and not fallback_storage:
            message = f"the fallback spool is in the bucket of the spool, {redact_uri(uri)}: they fail together"
            yield warning(message, "name a bucket of another store or region by fallback_uri under [spool]")


def _listable(result: Spool) -> Iterator[Finding]:
    uri = result.uri
    if isinstance(result.fs, LocalFileSystem) and (file := _file_in(result.root)):
        yield _no_folder(file)
        return
    try:
        result.fs.ls(result.root, detail=False)
    except FileNotFoundError:
        yield ok(f"{redact_uri(uri)} answers, and is empty")
    else:
        yield ok(f"{redact_uri(uri)} can be listed")


def room(patient: Patient) -> Iterator[Finding]:
    """Check free space on the disks of lake and spool, if they are local folders."""
    is_sound, least = True, patient.config.health.disk_free_ratio
    local = local_folders(patient.config)
    for noun, folder in local.items():
        disk = os.statvfs(existing_parent(folder))
        free = disk.f_bavail / max(disk.f_blocks, 1)
        if free < least:
            is_sound = False
            message = f"the disk of the {noun} {folder} is nearly full: {free:.1%} is free"
            yield warning(message, "make room; [health] disk_free_ratio says what is too little")
    if is_sound:
        yield ok(f"{least:.0%} and more are free") if local else skipped("neither lake nor spool is a folder here")


def _file_in(root: str) -> Path | None:
    """Return the part of a folder's path that is a file, so that the folder cannot exist."""
    return next((path for path in (Path(root), *Path(root).parents) if path.exists() and not path.is_dir()), None)


def _no_folder(file: Path) -> Finding:
    return failed(f"{file} is a file, not a folder", "fix the URI, or move the file away")


def _no_client(uri: str) -> Finding | None:
    """Return the finding that the client of a URI's store is not installed; None if it is."""
    scheme = uri.partition("://")[0] if "://" in uri else ""
    package, extra = CLIENTS.get(scheme, ("", ""))
    if not package or importlib.util.find_spec(package) is not None:
        return None
    return failed(f"{scheme}:// needs {package}, which is not installed", f"pip install 'ranklake[{extra}]'")
