"""Known secrets: values that this process holds under telling names, and that go wherever they stand.

A key of forty hexadecimal digits looks like a commit, and a password like a word. Where the environment, the command
line or the configuration says that it is one, it is found in log lines, paths and names of metrics as well.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote

from ranklake.redaction.secret_names import secret_level

MOST: Final = 256
_SHORTEST, _SHORTEST_OF_WEAK, _LONGEST = 8, 16, 4096
_PASSWORD: Final = re.compile(r"://[^/\s:@]{0,256}:([^\s@]{1,1024})@")
_OTHER: Final = re.compile(r"[/~.].*|\S*://.*|[\d_.,:\-]+|\[redacted\].*|.*[\s<>{}].*", re.DOTALL)
"""Paths, URLs, numbers, sentences, templates."""

_known: dict[str, None] = {}


def learn_variables(environ: Mapping[str, str]) -> None:
    """Take values of an environment for secrets where their names say so."""
    for name, value in environ.items():
        _learn(name, value)


def learn_arguments(arguments: Sequence[str]) -> None:
    """Take values of a command line's options for secrets where their names say so."""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, sign, value = argument.partition("=")
        if sign:
            _learn(name.lstrip("-+"), value)
        elif argument.startswith("-"):
            _learn(name.lstrip("-"), following)
        else:
            _learn("", argument)


def learn_settings(value: Any, name: str = "") -> None:  # noqa: ANN401 - JSON
    """Take texts of a configuration for secrets where a name that they stand under says so, however deep.

    Parameters
    ----------
    name
        Under which all of it stands, if that tells.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            learn_settings(item, str(key) if secret_level(str(key)) else name)
    elif isinstance(value, list):
        for item in value:
            learn_settings(item, name)
    elif isinstance(value, str):
        _learn(name, value)


def without_known(text: str, shown: str) -> str:
    """Return a text with `shown` in place of each secret that is known."""
    for secret in _secrets_in(text):
        text = text.replace(secret, shown)
    return text


def forget() -> None:
    """Know no secrets any more."""
    _known.clear()


def _secrets_in(text: str) -> Iterable[str]:
    return sorted((secret for secret in tuple(_known) if secret in text), key=len, reverse=True)


def _learn(name: str, value: str) -> None:
    """Remember a value if its name tells, and it is none that stands elsewhere for something else.

    Words and numbers do: a password that is one goes only where a name says so.
    """
    strength = secret_level(name)
    if "://" in value:
        for password in _PASSWORD.findall(value):
            _remember(unquote(password))
    elif strength and len(value) >= (_SHORTEST if strength > 1 else _SHORTEST_OF_WEAK):
        _remember(value)


def _remember(secret: str) -> None:
    is_mixed = any(map(str.isdigit, secret)) and any(map(str.isalpha, secret))
    if _SHORTEST <= len(secret) <= _LONGEST and is_mixed and not _OTHER.fullmatch(secret):
        for form in {secret, quote(secret, safe="")}:
            if form not in _known and len(_known) < MOST:
                _known[form] = None
