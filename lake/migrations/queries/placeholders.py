"""Placeholders of a query: what something else fills in before an engine sees it.

They are covered by names of the very same length, so that a query can be parsed and every place in it stays.
"""

import re
from collections.abc import Sequence
from typing import Final

Span = tuple[int, int]

_BLANK: Final = re.compile(r"\{%.*?%\}|\{#.*?#\}|\{\{-?\s*(?:config|log)\(.*?\)\s*-?\}\}", re.DOTALL)
"""Jinja's statements and comments, and dbt's settings: what statements enclose stays."""

_TEXT: Final = r"""(?:'[^'\n]*'|"[^"\n]*")"""
_SOURCE: Final = re.compile(rf"""\{{\{{-?\s*source\(\s*{_TEXT}\s*,\s*['"](\w+)['"]\s*\)\s*-?\}}\}}""")
"""A table, as dbt names it."""

_MODEL: Final = re.compile(rf"""\{{\{{-?\s*(?:this|ref\(\s*(?:{_TEXT}\s*,\s*)?['"](\w+)['"]\s*\))\s*-?\}}\}}""")
"""A query of dbt's: this one, or another by its name."""

_NAME: Final = re.compile(
    r"\{\{.*?\}\}"  # Jinja, jupysql
    r"|\$\{[^{}\n]*\}"  # Grafana: ${name:format}
    r"|\[\[\w+\]\]"  # Grafana: [[name]]
    r"|%\(\w+\)s|(?<=[\s(,=<>])%s\b"  # DB API
    r"|(?<!(?i:map) )(?<!(?i:map))\{\d*\}"  # str.format by place; DuckDB's MAP {} is empty
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
    text = _SOURCE.sub(lambda found: found[1].ljust(len(found[0])), text)
    spans += [found.span() for found in _NAME.finditer(text)]
    text = _NAME.sub(lambda found: _cover(len(found[0])), text)
    spans += [found.span() for found in _DOLLAR_WORD.finditer(text)]
    return _DOLLAR.sub("_", text), sorted(spans)


def is_source(placeholder: str) -> bool:
    """Say whether a placeholder names a table as dbt does."""
    return _SOURCE.match(placeholder) is not None


def model_of(placeholder: str) -> str | None:
    """Return the name of the query that a placeholder of dbt's stands for, empty for this one; None for any other."""
    found = _MODEL.fullmatch(placeholder)
    return None if found is None else found[1] or ""


def _cover(length: int) -> str:
    return "_" + "q" * (length - 1)
