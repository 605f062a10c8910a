"""The app of Prefect's server, whose garbage is collected outside its event loop.

A request that is cut off while SQLite answers leaves a cursor behind, in a cycle of references. Whoever frees it needs
the mutex of its connection, and a thread that waits for SQLite's write lock holds that mutex for up to a minute. Where
the event loop frees it, nothing is answered meanwhile, not even the request that holds the write lock. So a thread
does, and the event loop never.
"""

import gc
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fastapi import FastAPI

_YOUNG_S: Final = 1.0
_ALL_EVERY: Final = 60
"""Of so many collections of young objects, one is of all objects."""


def create_app() -> "FastAPI":
    """Return the app of Prefect's server, as uvicorn's factory; from now on a thread collects garbage."""
    from prefect.server.api.server import create_app as prefect_app  # settings come from the environment at import

    app = prefect_app()
    gc.freeze()  # what is here lives as long as the process
    collect_in_a_thread()
    return app


def collect_in_a_thread() -> None:
    """Collect garbage in a thread of its own alone, for the rest of the process."""
    gc.disable()
    threading.Thread(target=_collect, name="garbage", daemon=True).start()


def _collect() -> None:
    while True:
        for number in range(_ALL_EVERY):
            time.sleep(_YOUNG_S)
            gc.collect(2 if number == _ALL_EVERY - 1 else 1)
