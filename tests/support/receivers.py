"""Receivers of alerts that tests start for themselves: HTTP, with or without TLS, SMTP, and a proxy for fixed hosts."""

import contextlib
import ipaddress
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass
class Request:
    """What a server was asked."""

    method: str
    host: str
    path: str
    headers: dict
    body: bytes

    @property
    def json(self):
        """Return the body as JSON."""
        return json.loads(self.body)


@dataclass
class Server:
    """A server that runs: its port, and its requests in order; `released` ends what hangs."""

    respond: Callable
    port: int = 0
    requests: list[Request] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    asked: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self):
        """Return the server's address."""
        return f"http://127.0.0.1:{self.port}"


def answer(status=200, body=b"{}", headers=()):
    """Answer each request in the same way."""

    def respond(handler, server):
        del server
        handler.send_response(status)
        for name, value in headers:
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return respond


def answers(*responses):
    """Answer one request after the other in different ways; the last for all that follow."""
    return lambda handler, server: responses[min(len(server.requests), len(responses)) - 1](handler, server)


def hang(handler, server):
    """Take the request and never answer."""
    del handler
    server.released.wait()


def drip(handler, server):
    """Answer with a byte at a time, without end: no time limit between two bytes notices."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    while not server.released.wait(0.2):
        handler.wfile.write(b"X-Drip: 1\r\n")
        handler.wfile.flush()


def close(handler, server):
    """Close the connection without an answer."""
    del server
    handler.connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def serve(respond: Callable = answer(), tls: "Path | None" = None) -> Iterator[Server]:  # noqa: B008
    """Run an HTTP server for the block; with `tls`, a file of a key and a certificate, also as a proxy by CONNECT."""
    server = Server(respond)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self):
            with contextlib.suppress(OSError, ValueError):
                super().handle_one_request()
                return
            self.close_connection = True

        def do_CONNECT(self):
            """Answer in the place of the host that is meant."""
            self.send_response(200)
            self.end_headers()
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls)
            self.connection = context.wrap_socket(self.connection, server_side=True)
            self.close_connection = False
            self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)

        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            server.requests.append(
                Request(self.command, self.headers.get("Host", ""), self.path, dict(self.headers), body)
            )
            server.asked.set()
            self.close_connection = True
            server.respond(self, server)

        do_GET = do_POST  # noqa: N815

        def log_message(self, *_):
            pass

        def finish(self):
            with contextlib.suppress(OSError, ValueError):
                super().finish()
            for stream in (self.rfile, self.wfile, self.connection):
                with contextlib.suppress(OSError, ValueError):
                    stream.close()

    class Quiet(ThreadingHTTPServer):
        daemon_threads = False

        def handle_error(self, *_):
            pass

    with Quiet(("127.0.0.1", 0), Handler) as listening:
        server.port = listening.server_port
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            listening.shutdown()
            thread.join()


def certificate(folder: Path, *names: str) -> Path:
    """Write a key and a certificate that it signed itself for some hosts into a file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ranklake tests")])
    hosts = [*map(x509.DNSName, names), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    path = folder / "certificate.pem"
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(secret + signed.public_bytes(pem))
    return path
