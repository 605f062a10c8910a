"""A text of SQL as its statements: what stands between semicolons that are not within quotes or comments."""

import re
from typing import Final

_TOKENS: Final = re.compile(
    r"""(?P<quoted>'(?:[^']|'')*(?:'|\Z) | "(?:[^"]|"")*(?:"|\Z))
    | (?P<comment>--[^\n]* | /\*.*?(?:\*/|\Z))
    | (?P<end>;)""",
    re.VERBOSE | re.DOTALL,
)


def statements(text: str) -> list[str]:
    """Return the statements of a text in order, without their semicolons; none where there are but comments."""
    parts, start, begun = [], 0, 0
    said = ""
    for found in _TOKENS.finditer(text):
        said += text[begun : found.start()] + ("" if found["comment"] else found[0] if found["quoted"] else "")
        begun = found.end()
        if found["end"]:
            if said.strip():
                parts.append(text[start : found.start()].strip())
            start, said = found.end(), ""
    if (said + text[begun:]).strip():
        parts.append(text[start:].strip())
    return parts


def is_whole(text: str) -> bool:
    """Return whether a text ends a statement: with a semicolon that nothing but comments follows."""
    ended = False
    begun = 0
    for found in _TOKENS.finditer(text):
        if text[begun : found.start()].strip() or found["quoted"]:
            ended = False
        ended = ended or found["end"] is not None
        begun = found.end()
    return ended and not text[begun:].strip()
