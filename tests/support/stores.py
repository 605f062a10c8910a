"""Object stores that tests start for themselves, and a proxy before them that looks on, and meddles."""

import contextlib
import http.client
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import fsspec

from ranklake.segments.storage_options import fsspec_options

KEY, SECRET = "tests-access-key", "tests-secret-access-key"
STARTING_S = 30.0


@dataclass(frozen=True)
class Store:
    """A place for a spool: its URI, and storage options under delta-rs's names."""

    uri: str
    storage: dict[str, str] = field(default_factory=dict)
    more: dict = field(default_factory=dict)

    @property
    def options(self) -> dict:
        """Return fsspec's options."""
        return {**fsspec_options(self.uri, self.storage), **self.more}

    def below(self, name: str) -> "Store":
        """Return a place in this one."""
        return replace(self, uri=f"{self.uri}/{name}")

    def connect(self) -> tuple[Any, str]:
        """Return a client of its own, and the path of the place for it."""
        options = {name: value for name, value in self.options.items() if name != "put"}
        fs, root = fsspec.url_to_fs(self.uri, skip_instance_cache=True, **options)
        return fs, str(root).rstrip("/")

    def contents(self) -> dict[str, bytes]:
        """Return what is in the store, by path below the URI."""
        fs, root = self.connect()
        try:
            return {path.removeprefix(root).lstrip("/"): fs.cat_file(path) for path in fs.find(root)}
        except FileNotFoundError:
            return {}


def sent(place: Store, folder: Path) -> None:
    """Send a folder's files to a place, each under its path in the folder."""
    fs, root = place.connect()
    for path in folder.rglob("*"):
        if path.is_file():
            fs.pipe_file(f"{root}/{path.relative_to(folder)}", path.read_bytes())


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def serving(command: list[str], port: int, log: Path, env: dict[str, str] | None = None) -> Iterator[str]:
    """Run a server for the block, from when its port answers; give its URL."""
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env=env)
    with process:
        try:
            deadline = time.monotonic() + STARTING_S
            while not _answers(port):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.02)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:  # it waits for who is connected
                process.kill()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Serve folders as S3 buckets by rclone, which checks signatures and keeps objects as files; give its URL."""
    port = free_port()
    buckets = folder / "buckets"
    (buckets / "bucket").mkdir(parents=True)
    rclone = str(Path(sys.executable).with_name("rclone"))
    command = [rclone, "serve", "s3", "--auth-key", f"{KEY},{SECRET}", "--addr", f"127.0.0.1:{port}", str(buckets)]
    with serving([*command, "--config", "/dev/null"], port, folder / "rclone.log") as url:
        yield url


@contextlib.contextmanager
def moto_server(folder: Path) -> Iterator[str]:
    """Serve S3's protocol by moto, which keeps objects in memory, and conditional writes; give its URL."""
    port = free_port()
    moto = str(Path(sys.executable).with_name("moto_server"))
    with serving([moto, "-p", str(port)], port, folder / "moto.log") as url:
        make_bucket(url)
        yield url


def make_bucket(url: str) -> None:
    """Make the bucket that the tests use."""
    fs, _ = Store("s3://bucket", s3_storage(url)).connect()
    fs.call_s3("create_bucket", Bucket="bucket")


def s3_storage(url: str, **more: str) -> dict[str, str]:
    """Return storage options for a server of S3."""
    named = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "aws_region": "us-east-1"}
    return {**named, "aws_endpoint_url": url, "aws_allow_http": "true", **more}


@dataclass(frozen=True)
class Seen:
    """A request that came by."""

    method: str
    path: str
    headers: dict[str, str]


class Proxy:
    """An HTTP proxy in front of a store, on a port of its own.

    Attributes
    ----------
    seen
        All requests.
    faults
        What is done to the next PUTs, one each: a number is answered as that status; ``reset`` cuts the connection;
        ``swallow`` says 200 and stores nothing; ``late`` stores and says 500; None does nothing.
    rule
        Says what is done to a request, instead of `faults`, in the same words.
    dropped
        A header, in small letters, that is not handed on.
    """

    def __init__(self, url: str) -> None:
        self.seen: list[Seen] = []
        self.faults: list[object] = []
        self.rule: Callable[[Seen], object] | None = None
        self.dropped = ""
        self.connections: list[socket.socket] = []
        self.upstream = url.removeprefix("http://")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, self))
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # clients that are killed leave in the middle
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        for connection in self.connections:  # kept alive by clients that have no more requests
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.server_close()

    def puts(self) -> list[Seen]:
        """Return the requests that store something."""
        return [one for one in self.seen if one.method in {"PUT", "POST"}]


_SAYS = {
    status: f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{text}</Message></Error>".encode()
    for status, code, text in (
        (403, "AccessDenied", "Access Denied"),
        (429, "TooManyRequests", "Reduce your rate"),
        (503, "SlowDown", "Reduce your rate"),
        (507, "QuotaExceeded", "The bucket is full"),
    )
}


class _Handler(BaseHTTPRequestHandler):
    """Hands one connection's requests on."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else head and body of an answer go 40 ms apart

    def __init__(self, proxy: Proxy, *connection: object) -> None:
        self.proxy = proxy
        proxy.connections.append(connection[0])
        super().__init__(*connection)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        seen = Seen(self.command, self.path, {k.lower(): v for k, v in self.headers.items()})
        self.proxy.seen.append(seen)
        fault = self._fault(seen)
        if fault == "reset":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif fault == "swallow":
            self._answer(200, {}, b"")
        elif isinstance(fault, int):
            self._answer(fault, {"Content-Type": "application/xml"}, _SAYS.get(fault, b""))
        else:
            found = self._hand_on(body)
            self._answer(*((500, {}, b"") if fault == "late" else found))

    def _fault(self, seen: Seen) -> object:
        if self.proxy.rule is not None:
            return self.proxy.rule(seen)
        return self.proxy.faults.pop(0) if self.proxy.faults and self.command in {"PUT", "POST"} else None

    def _hand_on(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        with contextlib.closing(http.client.HTTPConnection(self.proxy.upstream, timeout=30)) as upstream:
            headers = {name: value for name, value in self.headers.items() if name.lower() != self.proxy.dropped}
            upstream.request(self.command, self.path, body or None, headers)
            found = upstream.getresponse()
            return found.status, dict(found.getheaders()), found.read()

    def _answer(self, status: int, headers: dict[str, str], raw: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in {"transfer-encoding", "connection"}:
                self.send_header(name, value)
        if "content-length" not in {name.lower() for name in headers}:
            self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(OSError):  # the client may have what it wanted, and be gone
                self.wfile.write(raw)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815 - as http.server wants it
