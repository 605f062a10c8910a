"""The folder of users' suites: JSON as Great Expectations writes it, and Python files with expectations of their own.

Nothing of it is executed here. What cannot be read is a problem with a name, beside whatever can.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ranklake.errors import RanklakeError
from ranklake.printable import printable_name
from ranklake.quality.suites.copies import MOST_BYTES, copy_of, is_store
from ranklake.redaction.redact import redact_uri

NO_OPTIONS: Final[Mapping[str, str]] = {}
_NAME: Final = 200
_PROJECT: Final = "great_expectations.yml"


class SuitesError(RanklakeError):
    """The folder of users' suites is not there. ``folder`` is what was configured."""

    def __init__(self, folder: str) -> None:
        super().__init__(
            "no such folder of suites",
            where=folder,
            hint="make the folder, or change suites under [quality] in ranklake.toml",
        )
        self.folder = folder


@dataclass(frozen=True, slots=True)
class UserSuite:
    """One suite of a user's, or a file that is none.

    Attributes
    ----------
    name
        As it names itself; of a file that is no suite, its path without ``.json``.
    table
        The table that it is for; a name that the lake may lack.
    expectations
        As the file has them: whatever it holds.
    problem
        Why it is no suite; empty if it is one.
    """

    name: str
    table: str
    expectations: tuple[Any, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class SuiteFolder:
    """What the folder holds.

    Attributes
    ----------
    python
        Absolute paths of Python files, which are run in a process of their own only.
    code
        SHA-256 of those; empty if there are none.
    defines
        Whether one of them may define suites, too.
    """

    suites: tuple[UserSuite, ...] = ()
    python: tuple[str, ...] = ()
    code: str = ""
    defines: bool = False


def read_folder(path: str, storage: Mapping[str, str] = NO_OPTIONS, code_sha256: str = "") -> SuiteFolder:
    """Read the folder, the project folder of Great Expectations, or either in an object store.

    Parameters
    ----------
    code_sha256
        Digest that the Python files must have together to be run (`SuiteFolder.code`). Without one those of a folder
        are run, and those of a store are not: whoever writes there would run code here.

    Raises
    ------
    SuitesError
        It is not there, or a store has no file of suites there.
    ranklake.lake.store.reachability.LakeUnreachableError, ranklake.quality.suites.copies.TooManyFilesError
        As `ranklake.quality.suites.copies.copy_of` does.
    """
    copy = copy_of(path, storage) if is_store(path) else None
    root = copy or Path(path.removeprefix("file://")).absolute()
    if (copy is None and is_store(path)) or not root.is_dir():
        raise SuitesError(redact_uri(path))
    return _believed(_folder(root), is_store(path), code_sha256)


def _believed(found: SuiteFolder, from_store: bool, code_sha256: str) -> SuiteFolder:
    """Return a folder without its Python files, and a problem in their place, unless they may be run."""
    if not found.python or found.code == code_sha256 or not (code_sha256 or from_store):
        return found
    told = "another than" if code_sha256 else "without"
    hint = f"if they are yours, set suites_code_sha256 under [quality] to {found.code}"
    problem = f"not run: Python files {told} the configured digest; {hint}"
    return SuiteFolder((*found.suites, UserSuite("python", "python", problem=problem)))


def _folder(root: Path) -> SuiteFolder:
    is_project = (root / _PROJECT).is_file()
    json_root, python_root = (root / "expectations", root / "plugins") if is_project else (root, root)
    suites = [_read(json_root, file) for file in _files(json_root, ".json")]
    python: dict[Path, bytes] = {}
    for file in _files(python_root, ".py"):
        try:
            python[file] = _bytes(file)
        except OSError as error:
            name = printable_name(str(file.relative_to(python_root)))[:_NAME]
            suites.append(UserSuite(name, _table_of(name), problem=f"not read ({type(error).__name__})"))
    digest = hashlib.sha256()
    for file, text in python.items():
        digest.update(os.fsencode(file.relative_to(python_root)) + f"\0{len(text)}\0".encode() + text)
    return SuiteFolder(
        tuple(_named_once(suites)),
        tuple(map(str, python)),
        digest.hexdigest() if python else "",
        any(b"ExpectationSuite" in text for text in python.values()),
    )


def suite_of(value: object, fallback: str) -> UserSuite:
    """Return the suite that a JSON value is, or one with a problem, named by `fallback`."""
    table = _table_of(fallback)
    if not isinstance(value, dict) or not isinstance(value.get("expectations"), list):
        return UserSuite(fallback, table, problem="not a suite: it lacks a list 'expectations'")
    name = value.get("name", value.get("expectation_suite_name"))
    if not isinstance(name, str) or not name:
        return UserSuite(fallback, table, problem="not a suite: it lacks a name")
    meta = value.get("meta")
    told = meta.get("table") if isinstance(meta, dict) else None
    table = told if isinstance(told, str) and told else _table_of(name)
    return UserSuite(printable_name(name)[:_NAME], table, tuple(value["expectations"]))


def _files(root: Path, ending: str) -> list[Path]:
    found = sorted(path for path in root.rglob(f"*{ending}") if path.is_file())
    return [path for path in found if not any(part.startswith((".", "__")) for part in path.relative_to(root).parts)]


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MOST_BYTES + 1)


def _read(root: Path, path: Path) -> UserSuite:
    fallback = printable_name(".".join(path.relative_to(root).with_suffix("").parts))[:_NAME]
    try:
        raw = _bytes(path)
        if len(raw) > MOST_BYTES:
            return UserSuite(fallback, _table_of(fallback), problem=f"not read: it has more than {MOST_BYTES:,} bytes")
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return UserSuite(fallback, _table_of(fallback), problem="not a suite: it is no JSON")
    except OSError as error:
        return UserSuite(fallback, _table_of(fallback), problem=f"not read ({type(error).__name__})")
    return suite_of(value, fallback)


def _named_once(suites: list[UserSuite]) -> Iterator[UserSuite]:
    seen: set[str] = set()
    for one in suites:
        if one.name in seen:
            yield UserSuite(f"{one.name}#2", one.table, problem="another file has a suite of the same name")
        else:
            yield one
        seen.add(one.name)


def _table_of(name: str) -> str:
    return name.partition(".")[0]
