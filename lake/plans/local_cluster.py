"""A local Dask cluster to which only this process can connect.

A client of a scheduler can execute code in its workers, and every user of the machine can reach a loopback port.
Therefore each cluster creates a temporary TLS key in memory, and all its ports require a client certificate of that
key. Dask's HTTP servers (dashboard, health, metrics) do not support this and are not started.

This module is imported only when a cluster is needed, because importing distributed takes a third of a second.
"""

import logging
from typing import Any

from distributed import Nanny, Scheduler, Security, SpecCluster, Worker
from distributed.http.routing import RoutingApplication
from distributed.node import ServerNode

HOST = "127.0.0.1"


class _NoHttp(ServerNode):
    """A mixin for Dask's servers that does not open the HTTP port, which has no TLS."""

    def start_http_server(self, routes: Any, *_: object, **__: object) -> None:  # noqa: ANN401 - Dask's own
        """Do not start an HTTP server."""
        self.http_application = RoutingApplication(routes)


class QuietScheduler(_NoHttp, Scheduler):
    """A scheduler without an HTTP server."""


class QuietWorker(_NoHttp, Worker):
    """A worker without an HTTP server."""


def local_cluster(count: int, memory_limit: str) -> SpecCluster:
    """Start a cluster of `count` worker processes with one thread each. The caller closes it."""
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
    # Failures are raised as one error; the cluster's logs would add tracebacks.
    return SpecCluster(
        scheduler=scheduler,
        workers=dict.fromkeys(range(count), worker),
        worker=worker,
        security=security,
        silence_logs=logging.CRITICAL,
    )
