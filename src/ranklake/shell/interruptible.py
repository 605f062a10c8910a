"""Calls that Ctrl-C leaves: DataFusion looks at no signal while it computes, and would keep whoever asked waiting."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Value = TypeVar("Value")


def interruptible(call: Callable[[], Value]) -> Value:
    """Return what a call returns, or raise what it raises; a `KeyboardInterrupt` of this thread ends the waiting.

    Notes
    -----
    The call goes on in a thread of its own until it is done, or the process ends: nothing waits for it then.
    """
    future: Future[Value] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits
            future.set_exception(error)

    thread = Thread(target=run, name="ranklake-query", daemon=True)
    thread.start()
    result = future.result()
    thread.join()
    return result
