"""Probes of this machine: the local spool, its disk, unsent segments, and the clock."""

import ctypes
import errno
import os
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final

from ranklake.capture.common.layouts import SLOT_LANES
from ranklake.capture.common.settings import CaptureSettings
from ranklake.capture.recording.budget import Budget
from ranklake.capture.spool.clock import read_clock
from ranklake.capture.spool.leader import leader
from ranklake.capture.spool.locations import LOCAL_VARIABLE, existing_root, is_network, planned_root
from ranklake.capture.spool.owner import HELD, Owner, boot_id
from ranklake.capture.spool.stream_files import StreamName, open_files, sealed_files, streams
from ranklake.config import Config
from ranklake.doctor.examination import Finding, Patient, failed, not_known, ok, skipped, warning
from ranklake.printable import counted
from ranklake.redaction.redact import redact_uri
from ranklake.segments.references import resolve_references
from ranklake.segments.storage_options import ENDPOINTS
from ranklake.views.words import size_text

_ASK_S: Final = 3.0
_TOLERATED_S: Final = 2.0
_FAR_S: Final = 60.0
_HINT: Final = "let chrony or ntpd set this machine's clock; times of other ranks are compared with it"
_GOOGLE: Final = "https://storage.googleapis.com"


@dataclass(frozen=True, slots=True)
class Offset:
    """Seconds that another clock is ahead of this machine's clock, and the error of this value."""

    seconds: float
    error_s: float


def clock(patient: Patient) -> Iterator[Finding]:
    """Report the kernel's clock error, and compare the clock with the stores of lake and spool."""
    yield _by_kernel()
    config = patient.config
    hosts: dict[str, str] = {}
    for uri in filter(None, (config.lake.uri, config.spool.uri)):
        hosts.setdefault(_host(uri, config.storage) or uri, uri)
    for host, uri in hosts.items():
        yield _by_place(host, redact_uri(uri))


def _by_kernel() -> Finding:
    result = read_clock(time.monotonic_ns())
    if result.synchronised is None:
        return not_known("the kernel tells nothing of its clock", "look on the host, outside the container")
    if not result.synchronised:
        return not_known("the kernel says that nobody sets its clock", _HINT)
    error_s = (result.max_error_ns or 0) / 1e9
    return ok(f"synchronised, wrong by at most {error_s:.3f} s")


def _by_place(host: str, shown: str) -> Finding:
    try:
        offset = _of_server(host) if "://" in host else _of_folder(Path(host))
    except (OSError, ValueError) as error:
        return not_known(f"{shown} tells no time ({type(error).__name__})")
    if offset is None:
        return not_known(f"{shown} tells no time")
    apart = max(0.0, abs(offset.seconds) - offset.error_s)
    message = f"{shown}: this clock is {abs(offset.seconds):,.1f} s {'behind' if offset.seconds > 0 else 'ahead of'} it"
    if apart > _FAR_S:
        return failed(message, _HINT)
    if apart > _TOLERATED_S:
        return warning(message, _HINT)
    return ok(f"agrees with {shown} to {max(offset.error_s, abs(offset.seconds)):.1f} s")


def _host(uri: str, storage: Mapping[str, str]) -> str:
    """Return the URL of a store's service; empty for a folder, or if it is unknown."""
    scheme, mark, rest = uri.partition("://")
    if not mark or scheme == "file":
        return ""
    endpoints = {name: text for name, text in storage.items() if name in ENDPOINTS and name[:2] == _KINDS.get(scheme)}
    named = next(iter(resolve_references(endpoints).values()), "")
    if named:
        return named
    if scheme in {"s3", "s3a"}:
        region = storage.get("aws_region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        return os.environ.get("AWS_ENDPOINT_URL") or f"https://s3.{region or 'us-east-1'}.amazonaws.com"
    if scheme in {"gs", "gcs"}:
        return _GOOGLE
    account = storage.get("azure_storage_account_name") or rest.partition("@")[2].partition(".")[0]
    return f"https://{account}.blob.core.windows.net" if account else ""


_KINDS: Final = {
    **dict.fromkeys(("s3", "s3a"), "aw"),
    **dict.fromkeys(("gs", "gcs"), "go"),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), "az"),
}


def _of_server(url: str) -> Offset | None:
    """Return the clock offset of a server by its Date header, for any response status; the request is not signed."""
    if not url.startswith(("http://", "https://")):
        return None
    before = time.time()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=_ASK_S) as answer:  # noqa: S310
            header = answer.headers.get("Date")
    except urllib.error.HTTPError as error:  # also an error response has a Date header
        header = error.headers.get("Date")
        error.close()
    after = time.time()
    if header is None:
        return None
    # The header has whole seconds: the true time is half a second later, plus or minus half a second.
    return Offset(parsedate_to_datetime(header).timestamp() + 0.5 - (before + after) / 2, 0.5 + (after - before) / 2)


def _of_folder(folder: Path) -> Offset | None:
    """Return the clock offset of a folder's file system, by the time of a temporary file."""
    folder = Path(str(folder).removeprefix("file://"))
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return None
    before = time.time()
    with tempfile.TemporaryFile(dir=folder) as file:
        written = os.fstat(file.fileno()).st_mtime
    after = time.time()
    return Offset(written - (before + after) / 2, 0.01 + (after - before) / 2)


_LEAST_FILES: Final = 1000
_AGENT: Final = "'ranklake agent --once' on this node brings it in; see that an agent runs there, and reaches the spool"
_STUCK: Final = "its agent ({}) does not send it, and says in its log why; mend that, or restart it"
_UNSUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS})


def local_spool(patient: Patient) -> Iterator[Finding]:
    """Check that ranks can record into the local spool, and report segments that wait there too long."""
    config = patient.config
    root = existing_root(config.spool.local)
    planned = planned_root(config.spool.local)
    if root is None:
        yield _can_be_made(planned)
        return
    if not os.access(root, os.W_OK | os.X_OK):
        yield failed(f"{root} cannot be written", f"give this user rights there, or set {LOCAL_VARIABLE}")
        return
    late, dead = list(_late_segments(root, config.capture)), list(_dead_streams(root))
    result = leader(root)
    remedy = _AGENT if result is None else _STUCK.format(result)
    if late:
        since = max(age for age, _ in late)
        rows = sum(count for _, count in late)
        yield warning(
            f"{root}: {counted(rows, 'row')} in {counted(len(late), 'segment')} wait to be sent, since {since:,.0f} s",
            remedy,
        )
    if dead:
        yield warning(f"{root}: {counted(len(dead), 'stream')} of processes that died, not sealed: {dead[0]}", remedy)
    if not late and not dead:
        yield ok(f"{root}: nothing waits longer than it should")


def _can_be_made(planned: Path) -> Finding:
    above = existing_parent(planned)
    if planned.exists() or not os.access(above, os.W_OK | os.X_OK):
        message = (
            f"{planned} is not a folder" if planned.exists() else f"{planned} cannot be made: {above} is not writable"
        )
        return failed(message, f"set {LOCAL_VARIABLE} to a folder of this user's own, on this node's disk")
    return skipped(f"nothing was recorded on this node: there is no {planned}")


def _late_segments(root: Path, settings: CaptureSettings) -> Iterator[tuple[float, int]]:
    """Yield age and rows of segments that neither the agent nor, after a delay, their own process has sent."""
    patience_s, now = settings.agent_patience_s + 2 * settings.seal_every_s, time.time()
    for folder in streams(root):
        try:
            for file in sealed_files(folder):
                age = now - file.path.stat().st_mtime
                if age > patience_s:
                    yield age, file.rows
        except OSError:  # it was sent meanwhile
            continue


def _dead_streams(root: Path) -> Iterator[str]:
    """Yield streams with unsealed files whose process has ended; streams of unknown state are left out."""
    shared = is_network(root)  # other nodes' processes record there, too
    for folder in streams(root):
        name = StreamName.of(folder)
        if name is None or HELD.has(name.incarnation):
            continue
        try:
            owner = Owner.read(folder)
            if owner is None or not open_files(folder) or owner.runs():
                continue
        except OSError:
            continue
        if owner.boot_id == boot_id() or not shared:
            yield f"{name.run} rank {name.rank}"


def disk(patient: Patient) -> Iterator[Finding]:
    """Check that the local spool's disk has room for the segments of a process while the store is unreachable."""
    folder, budget = (
        existing_parent(planned_root(patient.config.spool.local)),
        patient.config.capture.disk_budget_bytes,
    )
    result = os.statvfs(folder)
    free = result.f_bavail * result.f_frsize
    if free < max(budget, _largest_file(patient.config.capture)):
        yield warning(
            f"{folder}: {size_text(free)} free, and each process may take {size_text(budget)} while the store is away",
            "make room, or lower disk_budget_bytes under [capture]",
        )
    elif result.f_files and result.f_favail < _LEAST_FILES:
        yield warning(f"{folder}: {counted(result.f_favail, 'inode')} free", "delete small files there")
    else:
        yield ok(f"{folder}: {size_text(free)} free")


def preallocation(patient: Patient) -> Iterator[Finding]:
    """Check that the local spool's file system can preallocate files: otherwise a full disk would kill a rank."""
    folder, size = existing_parent(planned_root(patient.config.spool.local)), _largest_file(patient.config.capture)
    if not os.access(folder, os.W_OK | os.X_OK):
        yield not_known(f"{folder} cannot be written")
        return
    with tempfile.TemporaryFile(dir=folder) as file:
        error_number = _reserve(file.fileno(), size)
    if error_number is None:
        yield ok(f"{folder} reserves {size_text(size)} at once")
    elif error_number in _UNSUPPORTED:
        message = f"{folder}: the file system cannot reserve room; each page of a new file is written instead"
        yield warning(
            message, "put the local spool on ext4, xfs or tmpfs of this node, or set spool_writes = 'records'"
        )
    else:
        message = f"{folder}: {size_text(size)} cannot be reserved ({os.strerror(error_number)})"
        yield failed(message, "make room, or raise the limit on file sizes (ulimit -f) or the quota there")


def _reserve(fd: int, size_bytes: int) -> int | None:
    """Reserve room by fallocate(2), which the C library's posix_fallocate would emulate; return the error, if any."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if call is None:
        return errno.ENOSYS
    return ctypes.get_errno() if call(fd, 0, ctypes.c_long(0), ctypes.c_long(size_bytes)) else None


def _largest_file(settings: CaptureSettings) -> int:
    budget = Budget(settings.disk_budget_bytes)
    return max(budget.file_bytes(layout) for layout in SLOT_LANES.values())


def existing_parent(path: Path) -> Path:
    """Return a folder, or its nearest existing parent."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def local_folders(config: Config) -> dict[str, Path]:
    """Return the folders of lake and spool that lie on this machine. Creates no client of a store."""
    uris = {"lake": config.lake.uri, "spool": config.spool.uri}
    local = {noun: uri for noun, uri in uris.items() if uri and ("://" not in uri or uri.startswith("file://"))}
    return {noun: Path(uri.removeprefix("file://")) for noun, uri in local.items()}
