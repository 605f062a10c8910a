"""The folder of users' suites: JSON files of Great Expectations, and Python files with users' expectations.

This module executes none of them. A file that cannot be read becomes a suite with a problem; the others are read.

Suites in an object store are copied to the user's cache. Cached files are verified by their digests:

    <cache>/suites/<digest of the URI>.json   store metadata and digests of the files at the last read
    <cache>/suites/<digest of the files>/     a copy of all files; the name identifies the content

Files with unchanged metadata in the store (size, entity tag, time) are not fetched again, unless the cached file no
longer has its digest.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from ranklake.errors import RanklakeError
from ranklake.lake.store.store import file_system
from ranklake.printable import printable_name
from ranklake.redaction.redact import redact_uri

ENDINGS: Final = (".json", ".py", "great_expectations.yml")
MOST_FILES: Final = 2_000
MOST_BYTES: Final = 32 * 2**20
"""Maximum size of a file. A larger file is read up to this size plus one byte, and reported as too large."""
_LONG: Final = 2_000
_LONG_PART: Final = 250
"""Maximum bytes of a path, and of a name in it, on common file systems."""
KEPT: Final = 8
"""Number of copies that are kept: another check may still read an older one."""
_MARKS: Final = (
    "size",
    "ETag",
    "etag",
    "md5",
    "generation",
    "LastModified",
    "last_modified",
    "mtime",
    "updated",
    "created",
)


class TooManyFilesError(RanklakeError):
    """The location has too many files for a folder of suites."""


def is_store(path: str) -> bool:
    """Whether a path is in an object store, not a local folder."""
    return "://" in path and not path.startswith("file://")


def copy_of(uri: str, storage: Mapping[str, str]) -> Path | None:
    """Return a local copy of the current files of a store's suites; None if the store has none.

    After a failure the previous copy still exists.

    Raises
    ------
    ranklake.lake.store.reachability.LakeUnreachableError
        The store cannot be read. The previous copy is not used instead.
    TooManyFilesError
        The store has more than `MOST_FILES` files.
    """
    fs, root = file_system(uri, storage)
    listed = dict(_list_files(fs, root.rstrip("/"), uri))
    if not listed:
        return None
    cache = _cache()
    index = cache / f"{_digest(uri.rstrip('/').encode())}.json"
    known = _read_index(index)
    files: dict[str, tuple[str, bytes]] = {}
    for name, (place, mark) in listed.items():
        kept = _cached_bytes(cache, known, name, mark)
        files[name] = mark, _fetch(fs, place) if kept is None else kept
    folder = _place_folder(cache, {name: body for name, (_, body) in files.items()})
    facts = {name: [mark, _digest(body)] for name, (mark, body) in files.items()}
    _write(index, json.dumps({"copy": folder.name, "files": facts}).encode())
    _prune(cache, folder)
    return folder


def _list_files(fs: Any, root: str, uri: str) -> Iterator[tuple[str, tuple[str, str]]]:  # noqa: ANN401 - fsspec ships no types
    """Yield for each file of suites its path below the root, and its location and metadata in the store."""
    try:
        entries = fs.find(root, detail=True)
    except FileNotFoundError:
        return
    candidates = [(place, facts) for place, facts in sorted(entries.items()) if place.endswith(ENDINGS)]
    if len(candidates) > MOST_FILES:
        hint = "name the prefix that holds suites alone: suites under [quality] in ranklake.toml"
        raise TooManyFilesError(f"more than {MOST_FILES:,} files", where=redact_uri(uri), hint=hint)
    names = {place.removeprefix(root).lstrip("/") for place, _ in candidates}
    for location, facts in candidates:
        name = location.removeprefix(root).lstrip("/")
        parts = PurePosixPath(name).parts
        if name and "\0" not in name and not any(part == ".." or part.startswith((".", "__")) for part in parts):
            marks = {key: str(facts[key]) for key in _MARKS if facts.get(key) is not None}
            mark = json.dumps(marks) if len(marks) > 1 else ""  # the size alone does not identify a version
            yield _local(name, names), (location, mark)


def _local(name: str, names: set[str]) -> str:
    """Return a file's path in the copy: a digest of its name if the name is no valid path on a local file system."""
    path = PurePosixPath(name)
    long = len(name.encode()) > _LONG or any(len(part.encode()) > _LONG_PART for part in path.parts)
    taken = any(str(parent) in names for parent in path.parents)
    return f"{_digest(name.encode())}{path.suffix}" if long or taken or str(path) != name else name


def _fetch(fs: Any, place: str) -> bytes:  # noqa: ANN401 - as above
    """Return a file's first bytes. An empty file is not requested: S3 refuses a range of it."""
    body: bytes = b"" if fs.size(place) == 0 else fs.cat_file(place, end=MOST_BYTES + 1)
    return body


def _read_index(index: Path) -> Mapping[str, Any]:
    """Return the content of an index; empty if it is missing or damaged."""
    try:
        index_facts = json.loads(index.read_bytes())
    except (OSError, ValueError):
        return {}
    sound = (
        isinstance(index_facts, dict)
        and isinstance(index_facts.get("copy"), str)
        and isinstance(index_facts.get("files"), dict)
    )
    return index_facts if sound else {}


def _cached_bytes(cache: Path, known: Mapping[str, Any], name: str, mark: str) -> bytes | None:
    """Return a file's bytes from the cache if its metadata are unchanged and its digest is right; else None."""
    entry = known["files"].get(name) if known else None
    if not mark or not isinstance(entry, list) or entry[:1] != [mark]:
        return None
    try:
        body = (cache / Path(known["copy"]).name / name).read_bytes()
    except OSError:
        return None
    return body if entry[1:] == [_digest(body)] else None


def _place_folder(cache: Path, files: Mapping[str, bytes]) -> Path:
    """Return a folder with exactly these files. It is written under a temporary name and renamed."""
    listing = "\n".join(f"{_digest(body)} {json.dumps(name)}" for name, body in sorted(files.items()))
    folder = cache / _digest(listing.encode())
    if _has_exactly(folder, files):
        os.utime(folder)
        return folder
    temporary = Path(tempfile.mkdtemp(prefix=".making-", dir=cache))
    try:
        for name, body in files.items():
            place = temporary / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(body)
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # another check wrote the same folder
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _has_exactly(folder: Path, files: Mapping[str, bytes]) -> bool:
    """Whether a folder has exactly these files."""
    try:
        existing = {str(path.relative_to(folder)): path for path in folder.rglob("*") if not path.is_dir()}
        return existing.keys() == files.keys() and all(existing[name].read_bytes() == files[name] for name in files)
    except OSError:
        return False


def _write(place: Path, body: bytes) -> None:
    with tempfile.NamedTemporaryFile(prefix=".making-", dir=place.parent, delete=False) as temporary:
        temporary.write(body)
    Path(temporary.name).replace(place)


def _prune(cache: Path, folder: Path) -> None:
    """Delete the oldest copies, except this one."""
    others = [path for path in cache.iterdir() if path.is_dir() and path != folder and not path.name.startswith(".")]
    for path in sorted(others, key=lambda path: path.stat().st_mtime)[: 1 - KEPT]:
        shutil.rmtree(path, ignore_errors=True)


def _cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = base / "ranklake" / "suites"
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    return place


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


NO_OPTIONS: Final[Mapping[str, str]] = {}
_NAME: Final = 200
_PROJECT: Final = "great_expectations.yml"


class SuitesError(RanklakeError):
    """The folder of users' suites does not exist. ``folder`` is the configured path."""

    def __init__(self, folder: str) -> None:
        super().__init__(
            "no such folder of suites",
            where=folder,
            hint="make the folder, or change suites under [quality] in ranklake.toml",
        )
        self.folder = folder


@dataclass(frozen=True, slots=True)
class UserSuite:
    """A user's suite, or a file that could not be read as one, with its problem.

    Attributes
    ----------
    name
        Name in the file; for a file that is no suite, its path without ``.json``.
    table
        Name of its table, which the lake may lack.
    expectations
        Expectations as in the file, not validated.
    problem
        Why it is no suite; empty if it is one.
    """

    name: str
    table: str
    expectations: tuple[Any, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class SuiteFolder:
    """Content of the folder.

    Attributes
    ----------
    python
        Absolute paths of Python files, which only a separate process runs.
    code
        SHA-256 of the Python files; empty if there are none.
    defines
        Whether a Python file may define suites.
    """

    suites: tuple[UserSuite, ...] = ()
    python: tuple[str, ...] = ()
    code: str = ""
    defines: bool = False


def read_folder(path: str, storage: Mapping[str, str] = NO_OPTIONS, code_sha256: str = "") -> SuiteFolder:
    """Read a folder of suites, or a project folder of Great Expectations, locally or in an object store.

    Parameters
    ----------
    code_sha256
        Required digest of the Python files (`SuiteFolder.code`). Without it, Python files of a local folder are
        run. Those of a store are not, because anybody who can write there could run code here.

    Raises
    ------
    SuitesError
        The folder does not exist, or the store has no files of suites there.
    ranklake.lake.store.reachability.LakeUnreachableError, TooManyFilesError
        As `copy_of` does.
    """
    copy = copy_of(path, storage) if is_store(path) else None
    root = copy or Path(path.removeprefix("file://")).absolute()
    if (copy is None and is_store(path)) or not root.is_dir():
        raise SuitesError(redact_uri(path))
    return _without_untrusted_code(_folder(root), is_store(path), code_sha256)


def _without_untrusted_code(folder: SuiteFolder, from_store: bool, code_sha256: str) -> SuiteFolder:
    """Return the folder unchanged if its Python files may be run; else without them, and with a problem."""
    if not folder.python or folder.code == code_sha256 or not (code_sha256 or from_store):
        return folder
    relation = "another than" if code_sha256 else "without"
    hint = f"if they are yours, set suites_code_sha256 under [quality] to {folder.code}"
    problem = f"not run: Python files {relation} the configured digest; {hint}"
    return SuiteFolder((*folder.suites, UserSuite("python", "python", problem=problem)))


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
        tuple(_unique(suites)),
        tuple(map(str, python)),
        digest.hexdigest() if python else "",
        any(b"ExpectationSuite" in text for text in python.values()),
    )


def suite_of(value: object, fallback: str) -> UserSuite:
    """Return the suite in a JSON value, or one with a problem, named by `fallback`."""
    table = _table_of(fallback)
    if not isinstance(value, dict) or not isinstance(value.get("expectations"), list):
        return UserSuite(fallback, table, problem="not a suite: it lacks a list 'expectations'")
    name = value.get("name", value.get("expectation_suite_name"))
    if not isinstance(name, str) or not name:
        return UserSuite(fallback, table, problem="not a suite: it lacks a name")
    meta = value.get("meta")
    named_table = meta.get("table") if isinstance(meta, dict) else None
    table = named_table if isinstance(named_table, str) and named_table else _table_of(name)
    return UserSuite(printable_name(name)[:_NAME], table, tuple(value["expectations"]))


def _files(root: Path, ending: str) -> list[Path]:
    paths = sorted(path for path in root.rglob(f"*{ending}") if path.is_file())
    return [path for path in paths if not any(part.startswith((".", "__")) for part in path.relative_to(root).parts)]


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


def _unique(suites: list[UserSuite]) -> Iterator[UserSuite]:
    seen: set[str] = set()
    for suite in suites:
        if suite.name in seen:
            yield UserSuite(f"{suite.name}#2", suite.table, problem="another file has a suite of the same name")
        else:
            yield suite
        seen.add(suite.name)


def _table_of(name: str) -> str:
    return name.partition(".")[0]
