r"""Identities: recognizes names of persons and machines in a text by their form.

    addresses            ada@example.org, git@host, percent-encoded ones
    home folders         /home/ada, /Users/ada, C:\\Users\\ada, ~ada/
    addresses of hosts   10.0.0.7, fe80::1

Names in prose have no recognizable form; to hide those, hide the whole text.
"""

import re
from typing import Final

REDACTED: Final = "[redacted]"
_UNBROKEN: Final = re.compile(r"[^\s\"'<>(),;=\[\]{}|`]+")
_HOME: Final = re.compile(r"(?i)(?P<root>(?:/home|/users|\\{1,2}users)(?:/|\\{1,2}))[^/\\\s\"':;,<>]+")
_TILDE: Final = re.compile(r"(?<![\w.~])~[A-Za-z_][\w.-]*(?=/)")
_IPV4: Final = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\w)")
_IPV6: Final = re.compile(r"(?i)(?<![\w:.])[0-9a-f:]{3,}+(?![\w:])")
_EIGHT: Final = re.compile(r"(?i)(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}")


def without_identities(text: str) -> str:
    """Return a text with addresses, home folders and hosts replaced by `REDACTED`. Takes linear time."""
    if "@" in text or "%40" in text:
        text = _UNBROKEN.sub(_address, text)
    small = text.lower()
    if "/home" in small or "users" in small:
        text = _HOME.sub(lambda match: f"{match['root']}{REDACTED}", text)
    if "~" in text:
        text = _TILDE.sub(f"~{REDACTED}", text)
    if "." in text:
        text = _IPV4.sub(REDACTED, text)
    return _IPV6.sub(_host, text) if "::" in text or text.count(":") >= 7 else text  # noqa: PLR2004 - of an address


def _address(match: re.Match[str]) -> str:
    word = match[0]
    begins = word.replace("%40", "@").find("@")
    return REDACTED if begins > 0 else word  # text that begins with it is a decorator, or not an address


def _host(match: re.Match[str]) -> str:
    return REDACTED if "::" in match[0] or _EIGHT.fullmatch(match[0]) else match[0]
