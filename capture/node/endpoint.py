"""Endpoint: serves the agent's metrics over HTTP, on the loopback address only, to a Prometheus on the node."""

import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Self

from ranklake.capture.node.agent_metrics import CONTENT_TYPE
from ranklake.errors import RanklakeError

ADDRESS: Final = "127.0.0.1"
PATH: Final = "/metrics"
_SLOWEST_CLIENT_S: Final = 5.0


class PortInUseError(RanklakeError):
    """The port for the figures cannot be had."""


class Endpoint:
    """Serves a text at http://127.0.0.1:<port>/metrics until it is closed.

    Parameters
    ----------
    port
        0 takes any that is free; `port` then says which.
    text
        Called at each request, in a thread of its own.

    Raises
    ------
    PortInUseError
        The port cannot be had.
    """

    def __init__(self, port: int, text: Callable[[], str]) -> None:
        class Handler(_Handler):
            figures = staticmethod(text)

        try:
            self._server = ThreadingHTTPServer((ADDRESS, port), Handler)
        except OSError as error:
            raise PortInUseError(
                f"cannot be listened on ({error.strerror})", where=f"{ADDRESS}:{port}", mend="choose another port"
            ) from error
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="ranklake-metrics", daemon=True
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


class _Handler(BaseHTTPRequestHandler):
    timeout = _SLOWEST_CLIENT_S

    @staticmethod
    def figures() -> str:
        raise NotImplementedError

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body = self.figures().encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing: stdout and stderr are the agent's own."""
