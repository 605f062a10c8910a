"""Prometheus: scrape pages in the text format: DCGM's metrics into ``gpu_samples``, others into ``scalars``.

    thread: fetch, parse ──▶ queue ──▶ sample(): rows, values, events

A thread waits for slow endpoints, so that ticks do not.
"""

import base64
import http.client
import math
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from ranklake.capture.lanes.series import MAX_NAME
from ranklake.capture.samplers.dcgm import LABELS, MetricMapping, load_table, readings
from ranklake.capture.samplers.exposition import ExposedSample, NotExpositionError, Page, parse
from ranklake.capture.samplers.sample import (
    Holders,
    Reading,
    Row,
    Sample,
    SourceStatus,
    Tree,
    Value,
    by_environment,
    event,
    held_by,
)
from ranklake.redaction.redact import redact_names

MOST_BYTES: Final = 16 << 20
TIMEOUT_S: Final = 10.0
_BLOCK: Final = 1 << 16


class FetchError(Exception):
    """A page cannot be fetched. The message has the reason, without the URL's credentials."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, because the user did not configure the other address."""

    def redirect_request(self, *_: Any) -> None:  # noqa: ANN401 - as in the base class
        return None


def redact_url(url: str) -> str:
    """Return a URL without user, password, query and fragment, and with secrets in its path redacted."""
    parts = _split(url)
    return str(redact_names(urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))))


def fetch(url: str, timeout_s: float = TIMEOUT_S, most_bytes: int = MOST_BYTES) -> str:
    """Return the text of a page.

    Parameters
    ----------
    url
        ``http://`` or ``https://``; a user and a password in it are sent as basic authentication.
    timeout_s
        Longest time for the whole page, also if the endpoint sends slowly.

    Raises
    ------
    FetchError
        The page cannot be fetched.
    """
    parts = _split(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise FetchError("not an http:// or https:// URL")
    plain = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    request = urllib.request.Request(plain, headers={"Accept": "text/plain;version=0.0.4"})  # noqa: S310 - checked above
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        request.add_header("Authorization", "Basic " + base64.b64encode(pair.encode()).decode())
    deadline = time.monotonic() + timeout_s
    opener = urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            raw = _read(answer, deadline, most_bytes)
    except urllib.error.HTTPError as error:
        reason = "redirects elsewhere" if 300 <= error.code < 400 else f"answers {error.code}"  # noqa: PLR2004 - HTTP's
        raise FetchError(reason) from error
    except http.client.IncompleteRead as error:
        raise FetchError("the page is truncated") from error
    except TimeoutError as error:
        raise FetchError(f"no answer in {timeout_s:g} s") from error
    except urllib.error.URLError as error:
        raise FetchError(_reason(error.reason, timeout_s)) from error
    except (OSError, http.client.HTTPException) as error:
        raise FetchError(_reason(error, timeout_s)) from error
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise FetchError("the page is not text in UTF-8") from error


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise FetchError("not a URL") from error


def _read(answer: http.client.HTTPResponse, deadline: float, most_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while block := answer.read1(_BLOCK):
        parts.append(block)
        size += len(block)
        if size > most_bytes:
            raise FetchError(f"the page has more than {most_bytes} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError
    if answer.length:  # announced bytes are missing
        raise http.client.IncompleteRead(b"")
    return b"".join(parts)


def _reason(error: object, timeout_s: float) -> str:
    """Return an error's reason in a few words, without its own text, which may quote the request."""
    if isinstance(error, TimeoutError):
        return f"no answer in {timeout_s:g} s"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__


PREFIX: Final = "prometheus/"
"""Prefix of metrics that have no column."""
MOST_SERIES: Final = 2000
"""Most series of one page that become metrics."""
_KEPT_LABELS: Final = frozenset({"gpu", "UUID", "GPU_I_ID"})


class PrometheusSampler:
    """Samples one page.

    Parameters
    ----------
    url
        URL of the page; messages contain it without credentials.
    holders
        Returns the recording processes of this host.
    every_s
        Time between reads.
    """

    def __init__(self, url: str, holders: Holders, every_s: float, root: str = "/") -> None:
        self._url, self._holders, self._every_s, self._tree = url, holders, every_s, Tree(root)
        self._name = redact_url(url)
        self._host = socket.gethostname()
        self._table: dict[str, MetricMapping] = load_table()
        self._pages: deque[tuple[int, Page | str]] = deque(maxlen=16)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._status = SourceStatus(self._name)
        self._last_ns: dict[str, int] = {}
        self._before: dict[tuple[str, str], float] = {}
        self._offsets: dict[str, float] = {}
        self._names: dict[str, str] = {}
        self._left_out = False

    def sample(self, now_ns: int) -> Iterator[Sample]:
        """Yield the samples of pages fetched since the last call, and events for failed fetches."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ranklake-scrape", daemon=True)
            self._thread.start()
        while self._pages:
            at_ns, page = self._pages.popleft()
            if isinstance(page, str):
                yield from self._status.failed(page, now_ns)
                continue
            yield from self._status.recovery_event(now_ns)
            yield from self._devices(page, at_ns)
            yield from self._values(page, at_ns)

    def close(self) -> None:
        """Make the thread end after its current read, without waiting for it."""
        self._stopping.set()

    # ── the thread ──

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            self._pages.append((time.monotonic_ns(), self._read()))
            self._stopping.wait(max(0.0, began + self._every_s - time.monotonic()))

    def _read(self) -> Page | str:
        try:
            return parse(fetch(self._url, min(TIMEOUT_S, max(self._every_s, 1.0))))
        except (FetchError, NotExpositionError) as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - a bug must not end the thread
            return type(error).__name__

    # ── devices ──

    def _devices(self, page: Page, at_ns: int) -> Iterator[Row]:
        counters = self._counters(page)
        for key, reading in readings(page.samples, self._table):
            here = reading.columns.setdefault("host", self._host) == self._host
            reading.columns |= self._holding(reading) if here else {}
            before = self._last_ns.get(key)
            self._last_ns[key] = at_ns
            reading.columns["interval_ns"] = None if before is None else at_ns - before
            yield Row("gpu_samples", reading.row(), at_ns)
            yield from self._changes(key, reading, at_ns, counters)

    def _counters(self, page: Page) -> set[str]:
        """Return the columns that are counters, by the types in the page, else by those of DCGM."""
        names = {sample.name for sample in page.samples} & self._table.keys()
        kinds = {name: page.kind(name) if name in page.types else self._table[name].kind for name in names}
        return {self._table[name].column for name, kind in kinds.items() if kind == "counter"}

    def _holding(self, reading: Reading) -> dict[str, Any]:
        columns = reading.columns
        index = columns.get("device_index") if columns.get("mig_gpu_instance") is None else None
        ranks = by_environment(index, str(columns.get("device_uuid", "")), self._holders(), self._tree)
        return {} if ranks is None else held_by(ranks)

    def _changes(self, key: str, reading: Reading, at_ns: int, counters: set[str]) -> Iterator[Row]:
        """Yield an event for a new XID, and one for counters that were reset."""
        names = ("device_uuid", "device_index", "pci_bus_id", "holder_run", "holder_attempt", "holder_rank")
        facts = {name: reading.columns[name] for name in names if name in reading.columns}
        reset_columns = []
        for column, value in reading.columns.items():
            if column != "xid_last" and column not in counters:
                continue
            before = self._before.get((key, column))
            self._before[key, column] = value
            if column == "xid_last":
                if before is not None and value != before and value:
                    message = f"XID {value} on {facts.get('device_uuid')}"
                    yield event("xid", at_ns, "error", message, {**facts, "xid": value, "source": "dcgm"})
            elif before is not None and value < before:
                reset_columns.append(column)
        if reset_columns:
            message = f"counters of {facts.get('device_uuid')} were reset"
            yield event("counter_reset", at_ns, "info", message, {**facts, "columns": reset_columns})

    # ── other metrics ──

    def _values(self, page: Page, at_ns: int) -> Iterator[Sample]:
        """Yield the values of metrics without a column. Counters continue after a reset, as in Prometheus' sums."""
        left_out = 0
        if len(self._names) >= MOST_SERIES:
            self._drop_missing({metric_name(sample) for sample in page.samples})
        for sample in page.samples:
            if sample.name in self._table:
                continue
            raw = metric_name(sample)
            name = self._names.get(raw)
            if name is None:
                name = str(redact_names(raw))  # a label may contain a secret
                if len(self._names) >= MOST_SERIES or len(name) > MAX_NAME or not name.isprintable():
                    left_out += 1
                    continue
                self._names[raw] = name
            kind = page.kind(sample.name)
            yield Value(name, kind, self._unwrap_counter(name, sample.value) if kind == "counter" else sample.value)
        if left_out and not self._left_out:
            self._left_out = True
            message = f"{left_out} series of {self._name} are left out: too many, or names that cannot be stored"
            yield event("series_left_out", at_ns, "warning", message, {"source": self._name, "series": left_out})

    def _drop_missing(self, names: set[str]) -> None:
        """Drop series that the page no longer has, so that new ones fit the limit."""
        for raw in self._names.keys() - names:
            name = self._names.pop(raw)
            self._before.pop(("", name), None)
            self._offsets.pop(name, None)

    def _unwrap_counter(self, name: str, value: float) -> float:
        before = self._before.get(("", name))
        if math.isfinite(value):
            self._before["", name] = value
            if before is not None and value < before:
                self._offsets[name] = self._offsets.get(name, 0.0) + before
        return value + self._offsets.get(name, 0.0)


def metric_name(sample: ExposedSample) -> str:
    """Return the name of a sample's metric in the lake: Prometheus' name with sorted labels.

    DCGM's labels that identify the device are left out, except its number and UUID. Labels with an empty value are left
    out, too, because Prometheus treats them as missing.
    """
    labels = {name: value for name, value in sample.labels.items() if value}
    if "UUID" in labels:
        labels = {name: value for name, value in labels.items() if name in _KEPT_LABELS or name not in LABELS}
    inside = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
    return f"{PREFIX}{sample.name}{{{inside}}}" if inside else PREFIX + sample.name
