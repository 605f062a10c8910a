"""Files with queries: found, read, brought along, and written."""

import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ranklake.lake.migrations.queries.dashboards import dashboard
from ranklake.lake.migrations.queries.findings import Finding, Outcome, UnreadableError, edited
from ranklake.lake.migrations.queries.meanings import Table
from ranklake.lake.migrations.queries.notebooks import notebook
from ranklake.lake.migrations.queries.python_code import python
from ranklake.lake.migrations.queries.rewrite import rewrite
from ranklake.lake.migrations.queries.statements import DIALECTS
from ranklake.lake.migrations.steps.step import MigrationError

MOST_BYTES: Final = 64 * 2**20
"""Files that are larger are passed over."""

_NOT_OURS: Final = frozenset({"_delta_log", "node_modules", "__pycache__", "site-packages"})

Kind = Callable[[str, Mapping[str, Table], Sequence[str]], Outcome]
"""What comes of the text of a file of a kind. Raises `UnreadableError`."""


@dataclass(frozen=True, slots=True)
class FileOutcome:
    """What comes of a file.

    Attributes
    ----------
    before, after
        Its text.
    findings
        With places in `before`.
    passed_over
        Why nobody looked into it; else empty.
    """

    path: Path
    before: str = ""
    after: str = ""
    findings: tuple[Finding, ...] = ()
    passed_over: str = ""

    @property
    def is_changed(self) -> bool:
        """Whether something becomes of it."""
        return self.before != self.after

    @property
    def is_done(self) -> bool:
        """Whether nothing is left for a person."""
        return not self.passed_over and all(one.is_note for one in self.findings)

    def line_of(self, one: Finding) -> int:
        """Return the line of a finding, from 1."""
        return self.before.count("\n", 0, one.place) + 1

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "path": str(self.path),
            "changed": self.is_changed,
            "passed_over": self.passed_over or None,
            "findings": [
                {"line": self.line_of(one), "what": one.what, "is_note": one.is_note} for one in self.findings
            ],
        }


def outcome(path: Path, tables: Mapping[str, Table], dialects: Sequence[str] = DIALECTS) -> FileOutcome:
    """Return what comes of a file. Changes nothing."""
    try:
        text = _text(path)
        found = KINDS[path.suffix](text, tables, dialects)
    except UnreadableError as error:
        return FileOutcome(path, passed_over=str(error))
    except OSError as error:
        return FileOutcome(path, passed_over=f"it cannot be read ({error.strerror or type(error).__name__})")
    except RecursionError:
        return FileOutcome(path, passed_over="it is nested too deep")
    except Exception as error:  # noqa: BLE001 - one file that sqlglot stumbles over must not end the others
        return FileOutcome(path, passed_over=f"it cannot be looked through ({type(error).__name__})")
    return FileOutcome(path, text, edited(text, found.edits), tuple(sorted(found.findings)))


def _text(path: Path) -> str:
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise UnreadableError(f"it has {size:,} bytes, and more than {MOST_BYTES:,} are not read")
    raw = path.read_bytes()
    if b"\0" in raw:
        raise UnreadableError("it is binary")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"it is not in UTF-8 (byte {error.start})") from None


def walk(paths: Sequence[Path]) -> Iterator[Path | FileOutcome]:
    """Yield files with queries, each once, and what is passed over. Raises `MigrationError` for what is not there."""
    seen = set()
    for path in paths:
        for one in _walk(path):
            found = one.path if isinstance(one, FileOutcome) else one
            where = found.parent.resolve() / found.name
            if where not in seen:  # a file and its folder, or one of them twice
                seen.add(where)
                yield one


def _walk(path: Path) -> Iterator[Path | FileOutcome]:
    if path.is_symlink():
        yield FileOutcome(path, passed_over="it is a symbolic link; name what it leads to")
    elif path.is_dir():
        yield from _within(path)
    elif not path.exists():
        raise MigrationError("no such file or folder", where=str(path), hint="correct the path")
    elif path.suffix not in KINDS:
        yield FileOutcome(path, passed_over=f"its name ends in none of {', '.join(KINDS)}")
    elif not path.is_file():
        yield FileOutcome(path, passed_over="it is no regular file")
    else:
        yield path


def _within(folder: Path) -> Iterator[Path | FileOutcome]:
    def refused(error: OSError) -> None:
        unreadable.append(FileOutcome(Path(error.filename), passed_over=f"it cannot be read ({error.strerror})"))

    unreadable: list[FileOutcome] = []
    for where, folders, names in os.walk(folder, onerror=refused):
        folders[:] = sorted(one for one in folders if not one.startswith(".") and one not in _NOT_OURS)
        for path in (Path(where, name) for name in sorted(names)):
            if path.suffix not in KINDS:
                continue
            if path.is_symlink():
                yield FileOutcome(path, passed_over="it is a symbolic link; name what it leads to")
            elif path.is_file():
                yield path
    yield from unreadable


def write(one: FileOutcome) -> None:
    """Write what came of a file, all of it or nothing, with the mode that it has.

    Raises `MigrationError` where the file is no more what was read; it then stays.
    """
    path = one.path
    mode = stat.S_IMODE(path.stat().st_mode)
    fd, name = tempfile.mkstemp(prefix=f".{path.name}-", suffix=".tmp", dir=path.parent)
    scratch = Path(name)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(one.after.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        scratch.chmod(mode)
        if path.is_symlink() or path.read_bytes() != one.before.encode("utf-8"):
            raise MigrationError("somebody changed it meanwhile", where=str(path), hint="run the command again")
        scratch.replace(path)
    finally:
        with suppress(FileNotFoundError):
            scratch.unlink()


def _sql(text: str, tables: Mapping[str, Table], dialects: Sequence[str]) -> Outcome:
    begin = 1 if text.startswith("\ufeff") else 0
    found = Outcome()
    found.add(rewrite(text[begin:], tables, dialects=dialects), begin)
    return found


KINDS: Final[Mapping[str, Kind]] = {".sql": _sql, ".json": dashboard, ".ipynb": notebook, ".py": python}
"""By the end of a file's name."""
