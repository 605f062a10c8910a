"""Placeholders of a query: what something else fills in before an engine sees it.

They are covered by names of the very same length, so that a query can be parsed and every place in it stays.
"""

import re
from collections.abc import Sequence
from typing import Final

Span = tuple[int, int]

_BLANK: Final = re.compile(r"\{%.*?%\}|\{#.*?#\}", re.DOTALL)
"""Jinja's statements and comments: what they enclose stays."""

_NAME: Final = re.compile(
    r"\{\{.*?\}\}"  # Jinja, jupysql
    r"|\$\{[^{}\n]*\}"  # Grafana: ${name:format}
    r"|\[\[\w+\]\]"  # Grafana: [[name]]
    r"|%\(\w+\)s|(?<=[\s(,=<>])%s\b"  # DB API
    r"|\{[A-Za-z_]\w*(?:\.\w+|\[[^\]\n]*\])*(?:![rsa])?"  # str.format; what has more is a struct of DuckDB's
    r"(?::(?:[^\w{}]?[<>=^])?[-+]?z?#?0?\d*[_,]?(?:\.\d+)?(?:[bcdeEfFgGnosxX%]|%[^{}'\n]*)?)?\}",
    re.DOTALL,
)
_DOLLAR: Final = re.compile(r"\$(?=[A-Za-z_0-9])")
_DOLLAR_WORD: Final = re.compile(r"\$(?!__)\w+|\$__\w+(?!\w*\s*\()")
_FUNCTION: Final = re.compile(r"\$__\w+(?=\s*\()")

MACRO: Final = "___"
"""What a Grafana macro's name begins with once its dollar is covered."""


def covered(text: str, holes: Sequence[Span] = ()) -> tuple[str, list[Span]]:
    """Return a query with its placeholders covered, and where those are that stand for something unknown.

    Parameters
    ----------
    holes
        Further ones, such as the fields of an f-string.
    """
    spans = list(holes)
    for begin, end in holes:
        text = text[:begin] + _cover(end - begin) + text[end:]
    text = _BLANK.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    spans += [found.span() for found in _NAME.finditer(text)]
    text = _NAME.sub(lambda found: _cover(len(found[0])), text)
    spans += [found.span() for found in _DOLLAR_WORD.finditer(text)]
    return _DOLLAR.sub("_", text), sorted(spans)


def _cover(length: int) -> str:
    return "_" + "q" * (length - 1)
