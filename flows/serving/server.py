"""The app of Prefect's server, with garbage collection in a thread.

A request that is cut off during a query of SQLite leaves a cursor in a cycle of references. Freeing the cursor needs
the mutex of its connection, which a thread that waits for SQLite's write lock holds for up to a minute. In the event
loop that would block all requests, including the one that holds the write lock. So only a separate thread collects
garbage.
"""

import gc
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fastapi import FastAPI

_YOUNG_S: Final = 1.0
_ALL_EVERY: Final = 60
"""One of this many collections is a full one; the others collect young objects."""


def create_app() -> "FastAPI":
    """Return the app of Prefect's server, for uvicorn's factory, and start the collecting thread."""
    from prefect.server.api.server import create_app as prefect_app  # settings come from the environment at import

    app = prefect_app()
    gc.freeze()  # these objects live as long as the process
    collect_in_a_thread()
    return app


def collect_in_a_thread() -> None:
    """Collect garbage only in a daemon thread, for the rest of the process."""
    gc.disable()
    threading.Thread(target=_collect, name="garbage", daemon=True).start()


def _collect() -> None:
    while True:
        for number in range(_ALL_EVERY):
            time.sleep(_YOUNG_S)
            gc.collect(2 if number == _ALL_EVERY - 1 else 1)
