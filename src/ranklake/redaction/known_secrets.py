"""Known secrets: values under names of secrets in this process, which are replaced wherever they occur.

A key of forty hexadecimal digits looks like a commit, and a password like a word. If the environment, the command line
or the configuration has it under a secret's name, it is also found in log lines, paths and names of metrics.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote

from ranklake.redaction.secret_names import secret_level

MOST: Final = 256
_SHORTEST, _SHORTEST_OF_WEAK, _LONGEST = 8, 16, 4096
_PASSWORD: Final = re.compile(r"://[^/\s:@]{0,256}:([^\s@]{1,1024})@")
_NOT_SECRETS: Final = re.compile(r"[/~.].*|\S*://.*|[\d_.,:\-]+|\[redacted\].*|.*[\s<>{}].*", re.DOTALL)
"""Values that are not secrets: paths, URLs, numbers, sentences, templates."""

_known: dict[str, None] = {}


def learn_variables(environ: Mapping[str, str]) -> None:
    """Remember values of an environment under names of secrets."""
    for name, value in environ.items():
        _learn(name, value)


def learn_arguments(arguments: Sequence[str]) -> None:
    """Remember values of a command line's options under names of secrets."""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, sign, value = argument.partition("=")
        if sign:
            _learn(name.lstrip("-+"), value)
        elif argument.startswith("-"):
            _learn(name.lstrip("-"), following)
        else:
            _learn("", argument)


def learn_settings(value: Any, name: str = "") -> None:  # noqa: ANN401 - JSON
    """Remember texts of a configuration under names of secrets, at any depth.

    Parameters
    ----------
    name
        Name of the whole, if it is a secret's name.
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
    """Return a text with `shown` in place of each known secret."""
    for secret in _secrets_in(text):
        text = text.replace(secret, shown)
    return text


def forget() -> None:
    """Clear all known secrets."""
    _known.clear()


def _secrets_in(text: str) -> Iterable[str]:
    return sorted((secret for secret in tuple(_known) if secret in text), key=len, reverse=True)


def _learn(name: str, value: str) -> None:
    """Remember a value if its name is a secret's, and if it is unlikely to occur with another meaning.

    Words and numbers are likely to: such passwords are replaced only under a secret's name.
    """
    strength = secret_level(name)
    if "://" in value:
        for password in _PASSWORD.findall(value):
            _remember(unquote(password))
    elif strength and len(value) >= (_SHORTEST if strength > 1 else _SHORTEST_OF_WEAK):
        _remember(value)


def _remember(secret: str) -> None:
    is_mixed = any(map(str.isdigit, secret)) and any(map(str.isalpha, secret))
    if _SHORTEST <= len(secret) <= _LONGEST and is_mixed and not _NOT_SECRETS.fullmatch(secret):
        for form in {secret, quote(secret, safe="")}:
            if form not in _known and len(_known) < MOST:
                _known[form] = None
