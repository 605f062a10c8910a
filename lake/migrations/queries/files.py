"""Finds files with queries, updates their queries to the newest table versions, and writes them."""

import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ranklake.lake.migrations.queries.json_files import dashboard, notebook
from ranklake.lake.migrations.queries.python_code import python
from ranklake.lake.migrations.queries.rewrite import rewrite
from ranklake.lake.migrations.queries.statements import DIALECTS, Finding, Outcome, UnreadableError, apply_edits
from ranklake.lake.migrations.queries.tables import Table
from ranklake.lake.migrations.steps.step import MigrationError

MOST_BYTES: Final = 64 * 2**20
"""Larger files are skipped."""
_SKIPPED_FOLDERS: Final = frozenset({"_delta_log", "node_modules", "__pycache__", "site-packages"})
_LINK: Final = "it is a symbolic link; name what it leads to"


@dataclass(frozen=True, slots=True)
class FileOutcome:
    """Result for a file: its text before and after, findings with places in the old text, or why it is skipped."""

    path: Path
    before: str = ""
    after: str = ""
    findings: tuple[Finding, ...] = ()
    passed_over: str = ""

    @property
    def is_changed(self) -> bool:
        """Whether the text changes."""
        return self.before != self.after

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to be done by a person."""
        return not self.passed_over and all(finding.is_note for finding in self.findings)

    def line_of(self, finding: Finding) -> int:
        """Return the line number of a finding, counted from 1."""
        return self.before.count("\n", 0, finding.place) + 1

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        findings = [
            {"line": self.line_of(finding), "what": finding.message, "is_note": finding.is_note}
            for finding in self.findings
        ]
        passed_over = self.passed_over or None
        return {"path": str(self.path), "changed": self.is_changed, "passed_over": passed_over, "findings": findings}


def outcome(path: Path, tables: Mapping[str, Table], dialects: Sequence[str] = DIALECTS) -> FileOutcome:
    """Read a file and return the result for it. Writes nothing."""
    try:
        text = _text(path)
        result = KINDS[path.suffix](text, tables, dialects)
    except UnreadableError as error:
        return FileOutcome(path, passed_over=str(error))
    except OSError as error:
        return FileOutcome(path, passed_over=f"it cannot be read ({error.strerror or type(error).__name__})")
    except RecursionError:
        return FileOutcome(path, passed_over="it is nested too deep")
    except Exception as error:  # noqa: BLE001 - an error of sqlglot in one file must not stop the others
        return FileOutcome(path, passed_over=f"it cannot be looked through ({type(error).__name__})")
    return FileOutcome(path, text, apply_edits(text, result.edits), tuple(sorted(result.findings)))


def _text(path: Path) -> str:
    if (size := path.stat().st_size) > MOST_BYTES:
        raise UnreadableError(f"it has {size:,} bytes, and more than {MOST_BYTES:,} are not read")
    raw = path.read_bytes()
    if b"\0" in raw:
        raise UnreadableError("it is binary")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"it is not in UTF-8 (byte {error.start})") from None


def walk(paths: Sequence[Path]) -> Iterator[Path | FileOutcome]:
    """Yield files with queries, each once, and results for skipped ones. Raises `MigrationError` for missing paths."""
    seen = set()
    for file in (file for path in paths for file in _walk(path)):
        path = file.path if isinstance(file, FileOutcome) else file
        place = path.parent.resolve() / path.name
        if place not in seen:  # paths may repeat, or contain each other
            seen.add(place)
            yield file


def _walk(path: Path) -> Iterator[Path | FileOutcome]:
    if path.is_symlink():
        yield FileOutcome(path, passed_over=_LINK)
    elif path.is_dir():
        yield from _files_in(path)
    elif not path.exists():
        raise MigrationError("no such file or folder", where=str(path), hint="correct the path")
    elif path.suffix not in KINDS or not path.is_file():
        yield FileOutcome(path, passed_over=f"it is no file whose name ends in {', '.join(KINDS)}")
    else:
        yield path


def _files_in(folder: Path) -> Iterator[Path | FileOutcome]:
    unreadable: list[OSError] = []
    for where, folders, names in os.walk(folder, onerror=unreadable.append):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED_FOLDERS)
        for path in (Path(where, name) for name in sorted(names)):
            if path.suffix in KINDS and path.is_symlink():
                yield FileOutcome(path, passed_over=_LINK)
            elif path.suffix in KINDS and path.is_file():
                yield path
    for error in unreadable:
        yield FileOutcome(Path(error.filename), passed_over=f"it cannot be read ({error.strerror})")


def write(file: FileOutcome) -> None:
    """Write the new text of a file atomically, with the mode of the old file.

    Raises `MigrationError`, and does not change the file, if it was changed since it was read.
    """
    path = file.path
    mode = stat.S_IMODE(path.stat().st_mode)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", suffix=".tmp", dir=path.parent)
    scratch = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as target:
            target.write(file.after.encode("utf-8"))
            target.flush()
            os.fsync(target.fileno())
        scratch.chmod(mode)
        if path.is_symlink() or path.read_bytes() != file.before.encode("utf-8"):
            raise MigrationError("somebody changed it meanwhile", where=str(path), hint="run the command again")
        scratch.replace(path)
    finally:
        with suppress(FileNotFoundError):
            scratch.unlink()


def _sql(text: str, tables: Mapping[str, Table], dialects: Sequence[str]) -> Outcome:
    begin = 1 if text.startswith("\ufeff") else 0
    result = Outcome()
    result.add(rewrite(text[begin:], tables, dialects=dialects), begin)
    return result


KINDS: Final[Mapping[str, Callable[[str, Mapping[str, Table], Sequence[str]], Outcome]]] = {
    ".sql": _sql,
    ".json": dashboard,
    ".ipynb": notebook,
    ".py": python,
}
"""Functions that read a file, by the suffix of its name. They raise `UnreadableError`."""
