"""A local Dask cluster to which nobody else can connect.

Who connects to a scheduler runs code in its workers, and a port on loopback is open to every user of the machine. So
each cluster makes a key of its own, in memory, and all that it listens on is TLS that asks for that key's certificate.
Dask's HTTP servers (dashboard, health, metrics) know no such thing, so there are none.

Imported late: distributed costs a third of a second, and many commands need no cluster.
"""

import logging
from typing import Any

from distributed import Nanny, Scheduler, Security, SpecCluster, Worker
from distributed.http.routing import RoutingApplication
from distributed.node import ServerNode

HOST = "127.0.0.1"


class _NoHttp(ServerNode):
    """What of a server of Dask's would open a port without TLS, taken out."""

    def start_http_server(self, routes: Any, *_: object, **__: object) -> None:  # noqa: ANN401 - Dask's own
        """Start none."""
        self.http_application = RoutingApplication(routes)


class QuietScheduler(_NoHttp, Scheduler):
    """A scheduler without an HTTP server."""


class QuietWorker(_NoHttp, Worker):
    """A worker without an HTTP server."""


def local_cluster(count: int, memory_limit: str) -> SpecCluster:
    """Start a cluster of `count` worker processes of one thread each; the caller closes it."""
    security = Security.temporary()
    common: dict[str, Any] = {"host": HOST, "protocol": "tls://", "security": security}
    worker = {
        "cls": Nanny,
        "options": {
            **common,
            "worker_class": QuietWorker,
            "nthreads": 1,
            "memory_limit": memory_limit,
            "silence_logs": logging.CRITICAL,
        },
    }
    scheduler = {"cls": QuietScheduler, "options": {**common, "port": 0, "dashboard": False}}
    # What goes wrong comes back as one error; the cluster's own account of it would be stack traces.
    return SpecCluster(
        scheduler=scheduler,
        workers=dict.fromkeys(range(count), worker),
        worker=worker,
        security=security,
        silence_logs=logging.CRITICAL,
    )
