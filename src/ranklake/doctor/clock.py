"""Probe of the clock: what the kernel knows of its error, and how it stands to the clocks of lake and spool."""

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

from ranklake.capture.spool.clock import read_clock
from ranklake.doctor.examination import Patient
from ranklake.doctor.finding import Finding, failed, not_known, ok, warning
from ranklake.redaction.redact import redact_uri
from ranklake.segments.references import resolve_references
from ranklake.segments.storage_options import ENDPOINTS

_ASK_S: Final = 3.0
_TOLERATED_S: Final = 2.0
_FAR_S: Final = 60.0
_HINT: Final = "let chrony or ntpd set this machine's clock; times of other ranks are compared with it"
_GOOGLE: Final = "https://storage.googleapis.com"


@dataclass(frozen=True, slots=True)
class Offset:
    """How far another clock is ahead of this machine's, and how far that may be wrong, in seconds."""

    seconds: float
    error_s: float


def clock(patient: Patient) -> Iterator[Finding]:
    """Say what the kernel knows, and compare with the store of the lake and that of the spool."""
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
    """Return the URL of a store's service; empty for a folder, or where it is not known."""
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
    """Return a server's Date header, with any status; only a bare request is sent."""
    if not url.startswith(("http://", "https://")):
        return None
    before = time.time()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=_ASK_S) as answer:  # noqa: S310
            header = answer.headers.get("Date")
    except urllib.error.HTTPError as error:  # it answered, and that is all that was asked
        header = error.headers.get("Date")
        error.close()
    after = time.time()
    if header is None:
        return None
    # The header has whole seconds: the moment meant is half a second later, give or take as much.
    return Offset(parsedate_to_datetime(header).timestamp() + 0.5 - (before + after) / 2, 0.5 + (after - before) / 2)


def _of_folder(folder: Path) -> Offset | None:
    """Return what a folder's file system gives as the time of a new file, which goes at once."""
    folder = Path(str(folder).removeprefix("file://"))
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return None
    before = time.time()
    with tempfile.TemporaryFile(dir=folder) as file:
        written = os.fstat(file.fileno()).st_mtime
    after = time.time()
    return Offset(written - (before + after) / 2, 0.01 + (after - before) / 2)
