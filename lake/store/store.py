"""A lake's location: its marker, its folders, and how files are written there.

One set of storage options, under delta-rs's names, serves fsspec and delta-rs alike, so that a bucket is named once.

Every `Lake.create` asks the store to write the lake's marker again if it is absent, which it is not: a store that does
so all the same would let two commits of one number both win, and is refused. That costs one request and leaves nothing.
"""

import json
import os
import re
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, Final
from urllib.parse import quote

from fsspec.implementations.local import LocalFileSystem
from pyarrow import NativeFile
from pyarrow.fs import FileSystem, PyFileSystem
from pyarrow.fs import LocalFileSystem as ArrowLocal

from ranklake.lake.contracts.errors import ContractError
from ranklake.lake.contracts.load import contract, load_contracts, load_metrics
from ranklake.lake.contracts.model import Contract, Metric
from ranklake.lake.contracts.overlay import Overlay
from ranklake.lake.store import overlays
from ranklake.lake.store.lake_config import DEFAULT, LakeConfig
from ranklake.lake.store.objects import Files, delta_options, file_system, put_new
from ranklake.lake.store.reachability import (
    LakeError,
    LakeUnreachableError,
    NotALakeError,
    UnsafeStoreError,
    cannot_write,
    unreachable,
    unsafe,
)
from ranklake.redaction.redact import redact_uri
from ranklake.segments.references import resolved

__all__ = [
    "FORMAT",
    "MARKER",
    "Lake",
    "LakeError",
    "LakeUnreachableError",
    "NotALakeError",
    "UnsafeStoreError",
    "cannot_write",
]

FORMAT: Final = 2
MARKER: Final = "ranklake.json"
_ESCAPE: Final = re.compile("%[0-9A-Fa-f]{2}")


@dataclass(frozen=True)
class Lake:
    """An open lake.

    Attributes
    ----------
    uri
        As the user named it, without a trailing slash.
    storage
        Options under delta-rs's names, for delta-rs and (translated) for fsspec; references among them as they are, so
        that no other process gets what they stand for.
    fs, root
        The file system and the path of the lake in it.
    config
        What the operator configured of it.
    opened
        Handles on tables that `ranklake.lake.tables.tables.latest` keeps, by name, each with what tells its last commit
        from another. They stay in this process.
    sound
        Data files that `ranklake.lake.tables.integrity` found sound, by path, each as it was then. Likewise.
    known
        The operators' contracts that this object goes by, once somebody asked. Likewise.
    """

    uri: str
    storage: dict[str, str] = field(default_factory=dict, repr=False)
    fs: Any = field(default=None, repr=False, compare=False)
    root: str = ""
    config: LakeConfig = field(default=DEFAULT, repr=False)
    opened: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    sound: dict[str, object] = field(default_factory=dict, init=False, repr=False, compare=False)
    known: dict[str, Overlay | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"<lake {redact_uri(self.uri)}>"

    def _repr_html_(self) -> str:
        """Return the same for a notebook, with the names of its tables; no table is read for that."""
        tables = ", ".join(f"<code>{escape(name)}</code>" for name in self.contracts())
        ask = "ranklake.lake.sql(&quot;SELECT …&quot;, lake)"
        return f"<p>lake <b>{escape(redact_uri(self.uri))}</b>: <code>{ask}</code> asks {tables}</p>"

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process may have."""
        return {**self.__dict__, "opened": {}, "sound": {}, "known": {}}

    @classmethod
    def open(cls, uri: str, storage: dict[str, str] | None = None, config: LakeConfig = DEFAULT) -> "Lake":
        """Open an existing lake. Raises `NotALakeError` or `LakeUnreachableError`."""
        lake = cls._at(uri, storage, config)
        _read_marker(lake)
        return lake

    @classmethod
    def create(
        cls,
        uri: str,
        storage: dict[str, str] | None = None,
        config: LakeConfig = DEFAULT,
        before_making: Callable[[], None] = lambda: None,
    ) -> "Lake":
        """Open the lake, making it first where the place is empty or absent. Creating twice at once is harmless.

        `before_making` is called where there is no lake, and may raise to leave it at that.

        Raises `NotALakeError`, `LakeUnreachableError`, or `UnsafeStoreError`; what this call put there is gone then.
        """
        lake = cls._at(uri, storage, config)
        made = False
        try:
            # Another process may be making the lake right now: its marker, whole or not, is no stranger's file, and
            # what it makes next comes after the marker, which is therefore looked for last.
            found = lake.fs.ls(lake.root, detail=False) if lake.fs.exists(lake.root) else []
            strange = [path for path in found if not path.rpartition("/")[2].startswith(MARKER)]
            marked = lake.fs.exists(lake.path(MARKER))
            taken = bool(strange) and not marked
            if not marked and not taken:
                before_making()
                made = lake.put_if_absent(MARKER, json.dumps({"format": FORMAT, "lake": uuid.uuid4().hex}).encode())
        except OSError as error:
            raise unreachable(uri, error, lake.storage) from None
        if taken:
            raise NotALakeError("not a lake, and not empty", where=uri, hint="name an empty place")
        marker = _read_marker(lake)
        if not lake.is_local and lake.overwrites(MARKER, marker):
            if made:
                with suppress(FileNotFoundError):  # another that was refused beside this one was faster
                    lake.fs.rm_file(lake.path(MARKER))
            raise unsafe(uri)
        return lake

    @classmethod
    def _at(cls, uri: str, storage: dict[str, str] | None, config: LakeConfig) -> "Lake":
        options = delta_options(uri, storage or {})
        fs, root = file_system(uri, options)
        if not isinstance(fs, LocalFileSystem) and _ESCAPE.search(root):
            hint = "name another; a space or a letter beyond ASCII may stand there as it is"
            raise LakeError("Delta clients take % and two digits for an escaped character", where=uri, hint=hint)
        return cls(uri.rstrip("/"), options, fs, root.rstrip("/"), config)

    def configured(self, **sections: Any) -> "Lake":  # noqa: ANN401 - a section's own type
        """Return the lake with parts of its configuration replaced; their names are the fields of `LakeConfig`."""
        return replace(self, config=replace(self.config, **sections))

    @property
    def overlay(self) -> Overlay | None:
        """Operators' contracts: those that the lake was written under, and those of the configured folder.

        They are looked up once: a lake object knows what was there then.

        Raises `ranklake.lake.contracts.errors.ContractError` or `LakeUnreachableError`.
        """
        if not self.known:
            known = overlays.kept(self, overlays.newest(self))
            self.known["overlay"] = overlays.together(known, overlays.configured(self))
        return self.known["overlay"]

    def contract(self, table: str) -> Contract:
        """Return a table's contract, an operator's own columns and tables among them. Raises as `overlay`.

        Raises `ranklake.lake.contracts.errors.UnknownTableError`, too.
        """
        return contract(table, self.overlay)

    def contracts(self) -> Mapping[str, Contract]:
        """Return all contracts by table, sorted. Raises as `overlay`."""
        return load_contracts(self.overlay)

    def metrics(self) -> Mapping[str, Metric]:
        """Return the metric registry by name, sorted. Raises as `overlay`."""
        return load_metrics(self.overlay)

    def under(self, number: int) -> "Lake":
        """Return the lake as it knows contracts by the overlay that it kept under a number; 0 for none."""
        found = replace(self)
        found.known["overlay"] = overlays.kept(self, number)
        return found

    def overlay_refusal(self) -> ContractError | None:
        """Return why nothing can be written under the configured overlay; None if it can. Raises as `overlay`."""
        own = overlays.configured(self)
        return None if own is None else overlays.refusal(overlays.kept(self, overlays.newest(self)), own)

    def put_back_overlay(self, table: str, version: int) -> bool:
        """Know an own table by an earlier version again; see `ranklake.lake.store.overlays.put_back`."""
        self.known.pop("overlay", None)
        return overlays.put_back(self, table, version)

    def overlay_ahead(self) -> dict[str, int]:
        """Return the tables with migrations of yours that the lake does not know, with the version that it knows."""
        return overlays.ahead(self)

    def keep_overlay(self, waiting: Mapping[str, int] = overlays.NONE_WAITING) -> int:
        """Keep the configured overlay in the lake, for who writes rows; see `ranklake.lake.store.overlays.keep`."""
        number = overlays.keep(self, waiting)
        self.known.clear()
        return number

    @classmethod
    def place(cls, uri: str, storage: dict[str, str] | None = None) -> "Lake":
        """Return a place outside any lake, to keep small files in. Raises `LakeUnreachableError`."""
        return cls._at(uri.removeprefix("file:") if not uri.startswith("file://") else uri, storage, DEFAULT)

    @property
    def delta_storage(self) -> dict[str, str]:
        """Options as delta-rs takes them, references followed. Raises `ranklake.segments.references.SecretError`."""
        return dict(self.storage) if self.is_local else resolved(self.storage)

    @property
    def number(self) -> str:
        """What tells the lake from others, from its marker; empty where that has none."""
        try:
            return str(json.loads(self.fs.cat_file(self.path(MARKER))).get("lake", ""))
        except (ValueError, AttributeError, RecursionError):
            return ""

    @property
    def address(self) -> str:
        """The URI for another process, whose current folder may be another."""
        return self.root if self.is_local else self.uri

    @property
    def is_local(self) -> bool:
        """True where the lake is a folder of this machine."""
        return isinstance(self.fs, LocalFileSystem)

    def arrow_filesystem(self) -> FileSystem:
        """Return the lake's file system as pyarrow reads through it; a local one without the way round by fsspec."""
        return ArrowLocal() if self.is_local else PyFileSystem(Files(self.fs))

    def open_file(self, path: str, size_bytes: int | None = None) -> NativeFile:
        """Open one of the lake's files as pyarrow reads it; its size, where it is known, spares a store a request.

        Raises `FileNotFoundError`, `OSError` or `LakeUnreachableError`.
        """
        return ArrowLocal().open_input_file(path) if self.is_local else Files(self.fs).open_input_file(path, size_bytes)

    def path(self, *parts: str) -> str:
        """Return the path, for `fs`, of something in the lake."""
        return "/".join([self.root, *parts])

    def table_uri(self, table: str) -> str:
        """Return the URI of a Delta table, for delta-rs, which reads one of an object store as a URL."""
        scheme, mark, rest = self.address.partition("://")
        return f"{scheme}{mark}{quote(rest)}/tables/{table}"

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write a whole file unless the name is taken; return whether this call wrote it.

        A reader sees all of the file or none. Killed half-way, it leaves a stray temporary file on a local disk.
        Raises `LakeUnreachableError`.
        """
        target = self.path(name)
        if not self.is_local:
            return put_new(self.fs, target, data)
        scratch = f"{target}.{uuid.uuid4().hex}.tmp"
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120 - fsspec paths are strings
            with open(scratch, "xb") as file:  # noqa: PTH123 - likewise
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            return _linked(scratch, target)
        except OSError as error:
            raise cannot_write(target, error) from error
        finally:
            with suppress(OSError):  # it may never have been opened
                os.unlink(scratch)  # noqa: PTH108 - likewise

    def overwrites(self, name: str, data: bytes) -> bool:
        """Say whether the store replaces a file that it is asked to write only if absent: two commits could both win.

        The file is there, and holds `data`: so nothing changes, whatever the store does. Raises `LakeUnreachableError`.
        """
        return self.put_if_absent(name, data)


def _linked(scratch: str, target: str) -> bool:
    """Give a file its name, and return True; False where the name is taken: a rename would not say so.

    Of all that writing a file calls, only this may say that its name is taken. Making its folder raises
    `FileExistsError`, too, where something else has the folder's name, or the folder is not to be seen just then.
    """
    try:
        os.link(scratch, target)
    except FileExistsError:
        return False
    return True


def _read_marker(lake: Lake) -> bytes:
    """Return the marker's bytes. Raises `NotALakeError` or `LakeUnreachableError`."""
    uri = lake.uri
    try:
        raw = bytes(lake.fs.cat_file(lake.path(MARKER)))
    except FileNotFoundError as error:
        hint = "check the URI; 'ranklake ingest' makes a lake in an empty place"
        raise NotALakeError("not a lake (no ranklake.json there)", where=uri, hint=hint) from error
    except OSError as error:
        raise unreachable(uri, error, lake.storage) from None
    try:
        found = int(json.loads(raw)["format"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        hint = "restore ranklake.json from a backup"
        raise NotALakeError("ranklake.json is damaged", where=uri, hint=hint) from error
    if found != FORMAT:
        hint = "upgrade ranklake" if found > FORMAT else "make a new lake: no release wrote this one"
        raise NotALakeError(f"lake format {found}, and this ranklake reads {FORMAT}", where=uri, hint=hint)
    return raw
