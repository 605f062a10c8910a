"""The configuration file as it is read: its sections, the line of each key, and all that is wrong with it at once.

Whoever only works with it stops at the first problem (`ranklake.config.load_config`); ``ranklake config check`` tells
all of them.
"""

import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from ranklake.errors import RanklakeError, did_you_mean

STORAGE: Final = "storage"
MOST_BYTES: Final = 1 << 20
_TRIES: Final = 5
_TAKES: Final[dict[str, tuple[type, ...]]] = {
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "tuple": (list, tuple),
}
_KEY: Final = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+)"""
_DOTTED: Final = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_HEADER: Final = re.compile(rf"\s*(\[\[?)\s*({_DOTTED})\s*\]")
_ASSIGNED: Final = re.compile(rf"\s*({_DOTTED})\s*=")
_AT_LINE: Final = re.compile(r"\(at line (\d+)")


class ConfigError(RanklakeError):
    """A configuration file or value that cannot be used."""


@dataclass(frozen=True, slots=True)
class FileRead:
    """What a configuration file says.

    Attributes
    ----------
    sections
        By name, as objects of their kind; only what is sound in them.
    said
        Line of each key that is sound, by ``section.key``.
    problems
        What is wrong, in the order of lines.
    file
        Its absolute path; empty if there is none.
    """

    sections: Mapping[str, Any] = field(default_factory=dict)
    said: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[ConfigError, ...] = ()
    file: str = ""


def read_file(file: Path, kinds: Mapping[str, Any], tables: Mapping[str, type]) -> FileRead:
    """Read a configuration file; nothing is raised for what it holds.

    Parameters
    ----------
    kinds
        Sections by name, each a dataclass; ``storage`` is one beside them, of text.
    tables
        Keys under which tables stand, and what each of them is; in other lists stands text.
    """
    try:
        text = _text(file)
        raw = tomllib.loads(text)
    except ConfigError as error:
        return FileRead(problems=(error,), file=str(file.absolute()))
    except (ValueError, RecursionError) as error:
        line = _AT_LINE.search(str(error))
        where = f"{file}:{line[1]}" if line else str(file)
        wrong = ConfigError(f"not valid TOML: {error}", where=where, hint="fix the line named")
        return FileRead(problems=(wrong,), file=str(file.absolute()))
    return _Reader(file, text, kinds, tables).read(raw)


def _text(file: Path) -> str:
    """Return a file's text; one that is written meanwhile is read again. Raises `ConfigError`."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise unreadable(file, error) from None
    try:
        before = os.fstat(fd)
        if not stat.S_ISREG(before.st_mode):
            what = "is a folder" if stat.S_ISDIR(before.st_mode) else "is no regular file"
            raise ConfigError(f"{what}, not a configuration file", where=str(file), hint="name the file itself")
        for _ in range(_TRIES):
            raw, again, after = _read(fd), _read(fd), os.fstat(fd)
            # Times of files are as coarse as the kernel's tick, and many writes may fall into one.
            if raw == again and (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size):
                break
            before = after
        else:
            raise ConfigError("is being written", where=str(file), hint="run it again when it is whole")
    except OSError as error:
        raise unreadable(file, error) from None
    finally:
        os.close(fd)
    if len(raw) > MOST_BYTES:
        raise ConfigError(f"has more than {MOST_BYTES:,} bytes", where=str(file), hint="name a configuration file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"not valid TOML: byte {error.start} is not UTF-8"
        raise ConfigError(what, where=str(file), hint="save it as UTF-8") from None


def _read(fd: int) -> bytes:
    os.lseek(fd, 0, os.SEEK_SET)
    raw = b""
    while len(raw) <= MOST_BYTES and (some := os.read(fd, MOST_BYTES + 1 - len(raw))):
        raw += some
    return raw


def unreadable(file: Path, error: OSError) -> ConfigError:
    """Return what is wrong with a configuration file that is there, or may be, and cannot be read."""
    hint = "give the right to read it, or name another by RANKLAKE_CONFIG"
    return ConfigError(f"cannot be read ({error.strerror})", where=str(file), hint=hint)


class _Reader:
    """Turns what TOML gives into sections, and notes what is wrong."""

    def __init__(self, file: Path, text: str, kinds: Mapping[str, Any], tables: Mapping[str, type]) -> None:
        self._file, self._kinds, self._tables = file, kinds, tables
        self._lines = line_numbers(text)
        self._problems: list[tuple[int, ConfigError]] = []
        self._said: dict[str, int] = {}

    def read(self, raw: dict[str, Any]) -> FileRead:
        """Return what the file says."""
        sections: dict[str, Any] = {}
        for name, body in raw.items():
            if not isinstance(body, dict):
                self._refuse_value(name, body)
            elif name == STORAGE:
                sections[name] = self._options(body)
            elif name in self._kinds:
                sections[name] = self._filled(self._kinds[name], name, name, body)
            else:
                self._fault(f"unknown section [{name}]", name, did_you_mean(name, [*self._kinds, STORAGE]))
        problems = tuple(error for _, error in sorted(self._problems, key=lambda one: one[0]))
        return FileRead(sections, self._said, problems, str(self._file.absolute()))

    def _refuse_value(self, name: str, body: object) -> None:
        if name in {*self._kinds, STORAGE}:
            hint = f"write [{name}] in a line of its own, and its keys below"
            self._fault(f"{name} must be a section, not {type(body).__name__}", name, hint)
        else:
            self._fault(f"{name!r} stands outside a section", name, "put it under a [section]")

    def _options(self, body: dict[str, Any]) -> dict[str, str]:
        found = {}
        for key, value in body.items():
            at = f"{STORAGE}.{key}"
            if isinstance(value, dict | list):
                self._fault(f"{at} must be text, not {type(value).__name__}", at)
                continue
            found[key] = str(value).lower() if isinstance(value, bool) else str(value)
            self._said[at] = self._line(at)
        return found

    def _filled(self, kind: Any, name: str, at: str, body: dict[str, Any]) -> object:  # noqa: ANN401 - a section's
        """Return a section, or a table of one, with what is sound; `name` is for people, `at` tells tables apart."""
        filled: dict[str, Any] = {}
        known = {item.name: item for item in fields(kind)}
        for key, value in body.items():
            if key not in known:
                self._fault(f"unknown key {key!r} in [{name}]", f"{at}.{key}", did_you_mean(key, known))
                continue
            for one in self._taken(known[key].type, name, f"{at}.{key}", key, value):
                try:
                    kind(**{key: one})
                except ValueError as error:
                    self._fault(f"{name}.{error}", f"{at}.{key}")
                else:
                    filled[key] = one
                    self._said[f"{at}.{key}"] = self._line(f"{at}.{key}")
        try:
            return kind(**filled)
        except ValueError as error:  # each key is sound, and they are not together
            self._fault(f"{name}.{error}", at)
            return kind()

    def _taken(self, wanted: Any, name: str, at: str, key: str, value: object) -> Iterator[object]:  # noqa: ANN401
        """Yield a key's value if it is of its type."""
        expected = _TAKES.get(str(getattr(wanted, "__name__", "")), (str,))
        if not isinstance(value, expected) or isinstance(value, bool) is not (bool in expected):
            self._fault(f"{name}.{key} must be {expected[0].__name__}, not {type(value).__name__}", at)
        elif isinstance(value, int | float) and not value >= 0:
            self._fault(f"{name}.{key} must not be negative", at)
        elif not isinstance(value, list):
            yield value
        elif not all(isinstance(item, dict if key in self._tables else str) for item in value):
            self._fault(f"{name}.{key} must be a list of {'dict' if key in self._tables else 'str'}", at)
        elif key in self._tables:
            kind = self._tables[key]
            yield tuple(self._filled(kind, f"{name}.{key}", f"{at}[{n}]", item) for n, item in enumerate(value))
        else:
            yield tuple(value)

    def _line(self, place: str) -> int:
        """Return the line of a key, or of what it stands in; 0 if it is not known."""
        while place:
            if place in self._lines:
                return self._lines[place]
            place = place[:-1].rpartition("[")[0] if place.endswith("]") else place.rpartition(".")[0]
        return 0

    def _fault(self, what: str, place: str, hint: str = "") -> None:
        line = self._line(place)
        where = f"{self._file}:{line}" if line else str(self._file)
        self._problems.append((line, ConfigError(what, where=where, hint=hint)))


def line_numbers(text: str) -> dict[str, int]:
    """Return the line on which each key and each section of a TOML text begins, from 1, by ``section.key``.

    Tables of a list are told apart by number: ``spool.prefixes[0].keys``. Keys of inline tables have no line of their
    own.
    """
    found: dict[str, int] = {}
    counts: dict[str, int] = {}
    section, quote = "", ""
    for number, line in enumerate(text.splitlines(), 1):
        if quote:
            quote = "" if line.count(quote) % 2 else quote
            continue
        header, assigned = _HEADER.match(line), _ASSIGNED.match(line)
        if header:
            section = _plain(header[2])
            if header[1] == "[[":
                counts[section] = counts.get(section, -1) + 1
                found.setdefault(section, number)
                section = f"{section}[{counts[section]}]"
            found.setdefault(section, number)
        elif assigned:
            found.setdefault(f"{section}.{_plain(assigned[1])}".removeprefix("."), number)
            quote = next((mark for mark in ('"""', "'''") if line.count(mark) % 2), "")
    return found


def _plain(dotted: str) -> str:
    return ".".join(part[1:-1] if part[0] in "\"'" else part for part in re.findall(_KEY, dotted))
