"""YAML and TOML readers that return the line of each key.

`ranklake.operator_files` also validates operators' files against a model.
"""

import re
import stat
import tomllib
from pathlib import Path
from typing import Any, Final

import yaml

try:
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # PyYAML without libyaml gives the same results, slower
    from yaml import SafeLoader  # type: ignore[assignment]

__all__ = [
    "FormatError",
    "KeyPath",
    "SafeLoader",
    "hold_text",
    "is_text",
    "read_text",
    "read_toml",
    "read_yaml",
    "toml_lines",
    "yaml_line",
]

KeyPath = tuple[str | int, ...]
"""Keys and indices from the top of a file to an item."""
MAX_BYTES: Final = 1 << 20
_DEEPEST: Final = 64
"""Greatest nesting of collections; operators' files have a few levels."""
_SHALLOW: Final = 2000
"""A text with fewer opening brackets cannot nest deeply enough to exhaust a stack, and is not checked."""
_READS: Final = 5
_KEY: Final = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+)"""
_DOTTED: Final = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_HEADER: Final = re.compile(rf"\s*(\[\[?)\s*({_DOTTED})\s*\]")
_ASSIGNED: Final = re.compile(rf"\s*({_DOTTED})\s*=")
_AT_LINE: Final = re.compile(r"\(at line (\d+)")


class FormatError(ValueError):
    """A file that cannot be read: fault, hint, and line, 0 if unknown."""

    def __init__(self, what: str, hint: str, line: int = 0) -> None:
        super().__init__(what)
        self.what, self.hint, self.line = what, hint, line


def read_text(path: Path, noun: str = "file") -> str:
    """Return a file's text, read again while it is being written. Raises `FormatError`."""
    try:
        before = path.stat()
        if not stat.S_ISREG(before.st_mode):
            message = "is a folder" if stat.S_ISDIR(before.st_mode) else "is no regular file"
            raise FormatError(f"{message}, not a {noun}", "name the file itself")
        raw = _head(path)
        for _ in range(_READS):
            again, after = _head(path), path.stat()
            # File times are as coarse as the kernel's tick: several writes may have the same time.
            if raw == again and (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size):
                break
            raw, before = again, after
        else:
            raise FormatError("is being written", "run it again when it is complete")
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"byte {error.start} is not UTF-8", "save it as UTF-8") from None
    except OSError as error:
        raise FormatError(f"cannot be read ({error.strerror})", "check the path, and the right to read it") from error


def _head(path: Path) -> bytes:
    with path.open("rb") as opened:
        raw = opened.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise FormatError(f"has more than {MAX_BYTES:,} bytes", "name the file that was meant")
    return raw


def read_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text. Raises `FormatError`."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        line = _AT_LINE.search(str(error))
        raise FormatError(f"not valid TOML: {error}", "fix the line named", int(line[1]) if line else 0) from None


def read_yaml(text: str) -> Any:  # noqa: ANN401 - any YAML value
    """Parse a YAML text. Raises `FormatError`."""
    try:
        hold_text(text)
        return yaml.load(text, _Loader)  # noqa: S506 - a subclass of the safe loader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        raise FormatError(f"not usable YAML ({problem})", "fix the line", mark.line + 1 if mark else 1) from error


def hold_text(text: str) -> None:
    """Raise `yaml.YAMLError` for input that libyaml accepts wrongly: invalid text, and too deep nesting.

    libyaml recurses in C without a limit: deep nesting would crash the process. Texts may come from lakes and streams.
    """
    if not is_text(text):
        raise yaml.MarkedYAMLError(problem="half a character, which no text has")
    if sum(map(text.count, "[{-?:")) < _SHALLOW:  # one of these begins each collection
        return
    depth = 0
    for event in yaml.parse(text, SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            problem = "lists and mappings too deep within each other"
            mark: Any = event.start_mark  # libyaml's class, or PyYAML's
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def is_text(value: object) -> bool:
    """Whether a value is a text that can be encoded: JSON may contain lone surrogates."""
    try:
        return isinstance(value, str) and bool(value.encode() or True)
    except UnicodeEncodeError:
        return False


def toml_lines(text: str) -> dict[KeyPath, int]:
    """Return the line on which each key and each section of a TOML text begins, from 1, by its path.

    Keys of inline tables have no line of their own.
    """
    result: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    section: KeyPath = ()
    quote = ""
    for number, line in enumerate(text.splitlines(), 1):
        if quote:
            quote = "" if line.count(quote) % 2 else quote
            continue
        header, assigned = _HEADER.match(line), _ASSIGNED.match(line)
        if header:
            section = _path(header[2])
            if header[1] == "[[":
                counts[section] = counts.get(section, -1) + 1
                result.setdefault(section, number)
                section = (*section, counts[section])
            result.setdefault(section, number)
        elif assigned:
            result.setdefault((*section, *_path(assigned[1])), number)
            quote = next((mark for mark in ('"""', "'''") if line.count(mark) % 2), "")
    return result


def _path(dotted: str) -> KeyPath:
    return tuple(part[1:-1] if part[0] in "\"'" else part for part in re.findall(_KEY, dotted))


def yaml_line(text: str, at: KeyPath) -> int:
    """Return the line, from 1, of the item at a path of a YAML text; of its nearest existing parent if it has none."""
    node: Any = yaml.compose(text, _Loader)
    line = 1 if node is None else node.start_mark.line + 1
    for step in at:
        inner = None
        if isinstance(node, yaml.MappingNode):
            key, inner = next(((key, value) for key, value in node.value if key.value == str(step)), (None, None))
            line = line if key is None else key.start_mark.line + 1
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            inner = node.value[step]
            line = inner.start_mark.line + 1
        if inner is None:
            break
        node = inner
    return line


class _Loader(SafeLoader):
    """Reads YAML 1.2: ``on`` and ``no`` are words, dates stay text, 1e-3 is a number.

    A repeated key in a mapping is an error; PyYAML would silently take the last.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, Any]]] = {}  # noqa: RUF012 - PyYAML's own class attribute

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        result: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        if len(result) != len(node.value):
            seen = set()
            for key, _ in node.value:
                if key.value in seen:
                    message = f"key {key.value!r} appears twice"
                    raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
                seen.add(key.value)
        return result


for _tag, _form, _first in (
    ("bool", r"true|false", "tf"),
    ("null", r"null|~|", ["n", "~", ""]),
    ("int", r"[-+]?(0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_form})$"), list(_first))
