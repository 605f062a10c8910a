"""Masks of one text: kept in part, or redacted."""

import json
from collections.abc import Callable
from typing import Any, Final

from ranklake.redaction.identities import REDACTED, without_identities
from ranklake.redaction.redact import redact

HIDDEN: Final = "*"
_MOST_PASSES: Final = 8
_SEPARATORS: Final = frozenset("-_.@/: ")


def ends_kept(text: str, prefix: int, suffix: int) -> str:
    """Return a text of the same length of which so many characters at each end are shown.

    A text of which more than half would be shown is hidden as a whole. Separators stay, so that the form is seen.
    """
    if len(text) < 2 * (prefix + suffix):
        return starred(text)
    end = len(text) - suffix
    return f"{text[:prefix]}{starred(text[prefix:end])}{text[end:]}"


def domain_kept(text: str) -> str:
    """Return an address of which what follows the last ``@`` is shown; what is no address is hidden as a whole."""
    name, at, domain = text.rpartition("@")
    return f"{starred(name)}@{domain}" if name and at else starred(text)


def starred(text: str) -> str:
    """Return a text of the same length with separators alone."""
    return "".join(one if one in _SEPARATORS else HIDDEN for one in text)


def redacted(text: str) -> str:
    """Return a text without credentials, addresses and home folders; in JSON, its texts and keys without them.

    What was replaced may have hidden what stood beside it, as in ``10.0.0.7~ada/``: it is looked at again until nothing
    is found, so that a masked text is masked for good.
    """
    for _ in range(_MOST_PASSES):
        shown = _redacted(text)
        if shown == text:
            return shown
        text = shown
    return REDACTED


def _redacted(text: str) -> str:
    if text[:1] in {"{", "["}:  # an escape such as \u0040 would hide an address from every pattern
        try:
            shown = json.dumps(_each(redact(json.loads(text)), without_identities), ensure_ascii=False)
            return shown.encode(
                "utf-8", "replace"
            ).decode()  # JSON can escape halves of characters; text cannot hold them
        except RecursionError:
            return REDACTED
        except ValueError:
            pass
    return without_identities(str(redact(text)))


def _each(value: Any, change: Callable[[str], str]) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _each(item, change) for key, item in value.items()}
    return [_each(item, change) for item in value] if isinstance(value, list) else value
