"""Splits SQL into statements, and runs calls that Ctrl-C can interrupt.

DataFusion ignores signals while it computes, so calls run in threads that Ctrl-C abandons.
"""

import re
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import Final, TypeVar

Value = TypeVar("Value")


def interruptible(call: Callable[[], Value]) -> Value:
    """Return or raise the result of a call; a `KeyboardInterrupt` of this thread stops waiting for it.

    Notes
    -----
    The call continues in its own thread until it is done, or the process ends.
    """
    future: Future[Value] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it is raised in the waiting thread
            future.set_exception(error)

    thread = Thread(target=run, name="ranklake-query", daemon=True)
    thread.start()
    result = future.result()
    thread.join()
    return result


_TOKENS: Final = re.compile(
    r"""(?P<quoted>'(?:[^']|'')*(?:'|\Z) | "(?:[^"]|"")*(?:"|\Z))
    | (?P<comment>--[^\n]* | /\*.*?(?:\*/|\Z))
    | (?P<end>;)""",
    re.VERBOSE | re.DOTALL,
)


def statements(text: str) -> list[str]:
    """Return the statements of a text in order, without their semicolons; none if there are only comments."""
    return [statement for _, statement in statements_with_lines(text)]


def statements_with_lines(text: str) -> list[tuple[int, str]]:
    """Return the statements of a text in order, each with the number of its first line, from 1."""
    parts: list[tuple[int, str]] = []
    start, begun = 0, 0
    kept = ""
    for result in _TOKENS.finditer(text):
        kept += text[begun : result.start()] + ("" if result["comment"] else result[0] if result["quoted"] else "")
        begun = result.end()
        if result["end"]:
            if kept.strip():
                parts.append(_statement_with_line(text, start, result.start()))
            start, kept = result.end(), ""
    if (kept + text[begun:]).strip():
        parts.append(_statement_with_line(text, start, len(text)))
    return parts


def _statement_with_line(text: str, start: int, end: int) -> tuple[int, str]:
    statement = text[start:end].lstrip()
    return text.count("\n", 0, end - len(statement)) + 1, statement.rstrip()


def is_whole(text: str) -> bool:
    """Return whether a text ends with a complete statement: a semicolon, followed at most by comments."""
    ended = False
    begun = 0
    for result in _TOKENS.finditer(text):
        if text[begun : result.start()].strip() or result["quoted"]:
            ended = False
        ended = ended or result["end"] is not None
        begun = result.end()
    return ended and not text[begun:].strip()
