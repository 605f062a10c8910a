"""Literals of Python: what they say, and where each of its characters stands."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from ranklake.lake.migrations.queries.layers import Escape, Layer

_BETWEEN: Final = re.compile(r"(?:\s|#[^\n]*|\\\n)*")
_OPENS: Final = re.compile(r"([A-Za-z]*)(\"\"\"|'''|\"|')")
_ESCAPE: Final = re.compile(
    r"\\(?:\r?\n|[0-7]{1,3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\}|[\\'\"abfnrtv])"
)


def literal(text: str, begin: int, end: int) -> Layer | None:
    """Return what the literals between two places say together; None for bytes, and for what is no literal."""
    found = Layer()
    while (begin := _after(_BETWEEN, text, begin)) < end:
        opens = _OPENS.match(text, begin, end)
        if opens is None or "b" in opens[1].lower() or "t" in opens[1].lower():
            return None
        piece, begin = _piece(text, opens.end(), end, opens[1].lower(), opens[2])
        if piece is None:
            return None
        found.add(piece)
    return found


def _piece(text: str, begin: int, end: int, prefix: str, quote: str) -> tuple[Layer | None, int]:
    """Return what one literal says, and where it ends, quotes included."""
    found = Layer(escapes=[_escape(prefix, quote)])
    while begin < end and not text.startswith(quote, begin):
        stop = begin + 1
        said = text[begin]
        if said == "\\":
            stop, said = _escaped(text, begin, is_raw="r" in prefix)
        elif said in "{}" and "f" in prefix:
            if text.startswith(said * 2, begin):
                stop = begin + 2
            else:
                stop = _field_end(text, begin, end)
                said = text[begin:stop]
                found.holes.append((len(found.text), len(found.text) + len(said)))
        one_each = len(said) == stop - begin
        found.spans += [(begin + n, begin + n + 1) if one_each else (begin, stop) for n in range(len(said))]
        found.text += said
        begin = stop
    found.pieces = [0] * len(found.text)
    return (found, begin + len(quote)) if begin < end else (None, end)


def _escaped(text: str, begin: int, *, is_raw: bool) -> tuple[int, str]:
    """Return where a backslash's escape ends, and what it says."""
    if is_raw:
        end = begin + 1 if text.startswith(("{", "}"), begin + 1) else begin + 2
        return end, text[begin:end]
    found = _ESCAPE.match(text, begin)
    if found is None:
        return begin + 1, "\\"
    return found.end(), str(ast.literal_eval(f'"""{found[0]}"""'))


def _field_end(text: str, begin: int, end: int) -> int:
    """Return where a field of an f-string ends."""
    depth, quote = 0, ""
    for place in range(begin, end):
        one = text[place]
        if quote:
            quote = "" if one == quote else quote
        elif one in "'\"":
            quote = one
        elif one in "{[(":
            depth += 1
        elif one in "}])":
            depth -= 1
            if depth == 0:
                return place + 1
    return end


def _escape(prefix: str, quote: str) -> Escape:
    def write(new: str) -> str | None:
        is_broken = len(quote) == 1 and ("\n" in new or "\r" in new)
        if "r" in prefix:
            return None if quote[0] in new or "\\" in new or is_broken else _braced(new)
        new = new.replace("\\", "\\\\").replace(quote[0], "\\" + quote[0])
        return _braced(new.replace("\n", "\\n").replace("\r", "\\r") if is_broken else new)

    def _braced(new: str) -> str:
        return new.replace("{", "{{").replace("}", "}}") if "f" in prefix else new

    return write


def _after(pattern: re.Pattern[str], text: str, begin: int) -> int:
    found = pattern.match(text, begin)
    return found.end() if found is not None else begin


def places(text: str) -> Iterator[int]:
    """Yield where each line begins, in characters."""
    yield 0
    for found in re.finditer(r"\r\n|\r|\n", text):
        yield found.end()
