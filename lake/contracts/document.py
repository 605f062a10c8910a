"""Reads a YAML file so that errors can name the line."""

import re
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml

from ranklake.lake.contracts.errors import ContractError

try:
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # PyYAML was built without libyaml: same results, slower
    from yaml import SafeLoader  # type: ignore[assignment]

__all__ = ["Document", "KeyPath", "SafeLoader", "hold_text", "is_text"]

KeyPath = tuple[str | int, ...]
_DEEPEST: Final = 64
"""Collections within each other; a contract has a handful."""
_INDICATORS: Final = "[{-?:"
"""One of these begins each of them."""
_SHALLOW: Final = 2000
"""A text with fewer has no more collections within each other than any stack holds, and need not be looked at."""


def hold_text(text: str) -> None:
    """Raise `yaml.YAMLError` for what libyaml does not refuse itself: what is no text, and collections too deep.

    It composes them by recursion in C, where no limit of Python's holds: a process would end without a word. Texts come
    with lakes and streams, too.
    """
    if not is_text(text):
        raise yaml.MarkedYAMLError(problem="half a character, which no text has")
    if sum(map(text.count, _INDICATORS)) < _SHALLOW:
        return
    depth = 0
    for event in yaml.parse(text, SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            problem = "lists and mappings too deep within each other"
            mark: Any = event.start_mark  # libyaml's, or the one of PyYAML
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def is_text(found: object) -> bool:
    """Say whether something is a text that can be written: JSON may have half a character (a lone surrogate)."""
    try:
        return isinstance(found, str) and bool(found.encode() or True)
    except UnicodeEncodeError:
        return False


class _Loader(SafeLoader):
    """Reads YAML as version 1.2 has it: ``on`` and ``no`` are words, dates stay text, 1e-3 is a number.

    A key that stands twice in a mapping is an error; PyYAML alone would silently take the last.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, Any]]] = {}  # noqa: RUF012 - PyYAML's own class attribute

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        if len(found) != len(node.value):
            seen = set()
            for key, _ in node.value:
                if key.value in seen:
                    what = f"key {key.value!r} appears twice"
                    raise yaml.constructor.ConstructorError(None, None, what, key.start_mark)
                seen.add(key.value)
        return found


for _tag, _form, _first in (
    ("bool", r"true|false", "tf"),
    ("null", r"null|~|", ["n", "~", ""]),
    ("int", r"[-+]?(0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_form})$"), list(_first))


class Document:
    """One YAML file.

    Parameters
    ----------
    text
        What stands in it, where it was read already.

    Attributes
    ----------
    path
        Where it is.
    content
        What it says, in plain dicts, lists and scalars.

    Raises
    ------
    ContractError
        From the constructor: not readable, not YAML, a key twice in one mapping. From `fail`: always.
    """

    def __init__(self, path: Path, text: str | None = None) -> None:
        self.path = path
        try:
            self._text = path.read_text(encoding="utf-8") if text is None else text
        except (OSError, UnicodeDecodeError) as error:
            raise ContractError(f"cannot be read ({error})", where=str(path), hint="check the path") from error
        try:
            hold_text(self._text)
            self.content = yaml.load(self._text, _Loader)  # noqa: S506 - a subclass of the safe loader
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = mark.line + 1 if mark else 1
            problem = getattr(error, "problem", None) or str(error)
            raise ContractError(f"not usable YAML ({problem})", where=f"{path}:{line}", hint="fix the line") from error

    def fail(self, at: KeyPath, what: str, hint: str = "") -> NoReturn:
        """Raise `ContractError` for the item at the path ``at``, with its line."""
        raise ContractError(what, where=f"{self.path}:{self.line(at)}", hint=hint)

    def line(self, at: KeyPath) -> int:
        """Return the line, from 1, of the item at a path; of its nearest existing parent if it is not there."""
        node = yaml.compose(self._text, _Loader)
        line = 1 if node is None else node.start_mark.line + 1
        for step in at:
            inner, line = _child(node, step, line)
            if inner is None:
                break
            node = inner
        return line


def _child(node: yaml.Node | None, step: str | int, line: int) -> tuple[yaml.Node | None, int]:
    """Return the node one step down and its line; None and the line so far if there is none."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(step):
                return value, key.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step], node.value[step].start_mark.line + 1
    return None, line
