"""Endpoint: an HTTP server for metrics, health and a live page, by default on the loopback address."""

import contextlib
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, NamedTuple, Self

from ranklake.errors import RanklakeError

ADDRESS: Final = "127.0.0.1"
_SLOWEST_CLIENT_S: Final = 5.0


class PortInUseError(RanklakeError):
    """The port is in use or forbidden."""


class Answer(NamedTuple):
    """The response to a request."""

    content_type: str
    body: bytes
    status: HTTPStatus = HTTPStatus.OK


class Endpoint:
    """Serves http://<host>:<port>/ until it is closed.

    Parameters
    ----------
    port
        Port to listen on; 0 selects a free port, which the attribute `port` contains.
    answer
        Called with the path and query of each request, each in a separate thread. None means not found.
    host
        Address to listen on. Clients are not authenticated, also on other addresses than loopback.

    Raises
    ------
    PortInUseError
        The port is in use or forbidden, or this host does not have the address.
    """

    def __init__(self, port: int, answer: Callable[[str], Answer | None], host: str = ADDRESS) -> None:
        class Handler(_Handler):
            answer_to = staticmethod(answer)

        try:
            self._server = (_Server6 if ":" in host else ThreadingHTTPServer)((host, port), Handler)
        except OSError as error:
            raise PortInUseError(
                f"cannot be listened on ({error.strerror})", where=f"{host}:{port}", hint="choose another port"
            ) from error
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="ranklake-http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving, without waiting for clients."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server6(ThreadingHTTPServer):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    timeout = _SLOWEST_CLIENT_S

    @staticmethod
    def answer_to(path: str, /) -> Answer | None:
        raise NotImplementedError

    def do_GET(self) -> None:
        answer = self.answer_to(self.path)
        if answer is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the client has disconnected
            self.wfile.write(answer.body)

    def log_message(self, *_: object) -> None:
        """Log nothing, because stdout and stderr belong to the program."""
