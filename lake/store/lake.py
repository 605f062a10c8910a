"""A lake: its store, its catalog of contracts, its open tables, and its configuration.

`Lake.create` tests whether the store honours conditional writes: it writes the existing marker again, on the condition
that it is absent. A store that overwrites the marker is refused, because two commits with one number could both
succeed there. The test costs one request and changes nothing.
"""

import json
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

from ranklake.lake.contracts.model import Contract
from ranklake.lake.store.catalog import Catalog
from ranklake.lake.store.lake_config import DEFAULT, LakeConfig
from ranklake.lake.store.reachability import NotALakeError, unreachable, unsafe
from ranklake.lake.store.store import FORMAT, MARKER, Store
from ranklake.lake.store.tables import Tables
from ranklake.redaction.redact import redact_uri


@dataclass(frozen=True)
class Lake:
    """An open lake. Functions that need only one of its parts take that part instead.

    Attributes
    ----------
    store
        The place of its files.
    catalog
        The contracts of its tables.
    tables
        Cached table handles of this process.
    config
        The operator's configuration.
    """

    store: Store
    catalog: Catalog = field(repr=False, compare=False)
    tables: Tables = field(repr=False, compare=False)
    config: LakeConfig = field(default=DEFAULT, repr=False)

    def __repr__(self) -> str:
        return f"<lake {redact_uri(self.uri)}>"

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the URI and the names of all tables. Reads no table."""
        tables = ", ".join(f"<code>{escape(name)}</code>" for name in self.contracts())
        ask = "ranklake.lake.sql(&quot;SELECT …&quot;, lake)"
        return f"<p>lake <b>{escape(redact_uri(self.uri))}</b>: <code>{ask}</code> asks {tables}</p>"

    @classmethod
    def of(cls, store: Store, config: LakeConfig = DEFAULT) -> "Lake":
        """Return the lake in a store, without checking that the store contains one."""
        return cls(store, Catalog(store, config.contracts.overlay), Tables(store), config)

    @classmethod
    def open(cls, uri: str, storage: dict[str, str] | None = None, config: LakeConfig = DEFAULT) -> "Lake":
        """Open an existing lake. Raises `NotALakeError` or `LakeUnreachableError`."""
        store = Store.at(uri, storage)
        store.marker()
        return cls.of(store, config)

    @classmethod
    def create(
        cls,
        uri: str,
        storage: dict[str, str] | None = None,
        config: LakeConfig = DEFAULT,
        before_making: Callable[[], None] = lambda: None,
    ) -> "Lake":
        """Open the lake, or create it if the place is empty or absent. Concurrent calls are safe.

        `before_making` is called before a lake is created. It may raise to prevent that.

        Raises `NotALakeError`, `LakeUnreachableError` or `UnsafeStoreError`. A marker that this call wrote is removed
        again.
        """
        store = Store.at(uri, storage)
        is_created = False
        try:
            # Another process may be creating the lake: it writes the marker first, perhaps as a temporary file, and
            # other files later. Looking for the marker after listing the folder therefore never takes its files for
            # foreign ones.
            entries = store.fs.ls(store.root, detail=False) if store.fs.exists(store.root) else []
            foreign = [path for path in entries if not path.rpartition("/")[2].startswith(MARKER)]
            has_marker = store.fs.exists(store.path(MARKER))
            is_occupied = bool(foreign) and not has_marker
            if not has_marker and not is_occupied:
                before_making()
                facts = {"format": FORMAT, "lake": uuid.uuid4().hex}
                is_created = store.put_if_absent(MARKER, json.dumps(facts).encode())
        except OSError as error:
            raise unreachable(uri, error, store.storage) from None
        if is_occupied:
            raise NotALakeError("not a lake, and not empty", where=uri, hint="name an empty place")
        marker = store.marker()
        if not store.is_local and store.overwrites(MARKER, marker):
            if is_created:
                with suppress(FileNotFoundError):  # a concurrent call was refused, too, and removed the marker
                    store.fs.rm_file(store.path(MARKER))
            raise unsafe(uri)
        return cls.of(store, config)

    def configured(self, **sections: Any) -> "Lake":  # noqa: ANN401 - a section's own type
        """Return the lake with other values for some fields of `LakeConfig`."""
        return Lake.of(self.store, replace(self.config, **sections))

    def at_number(self, number: int) -> "Lake":
        """Return the lake with the contracts of its stored overlay ``number``; with 0, the packaged ones only."""
        return replace(self, catalog=self.catalog.at_number(number))

    @property
    def uri(self) -> str:
        """See `Store.uri`."""
        return self.store.uri

    @property
    def fs(self) -> Any:  # noqa: ANN401 - fsspec has no types
        """See `Store.fs`."""
        return self.store.fs

    def contract(self, table: str) -> Contract:
        """See `Catalog.contract`."""
        return self.catalog.contract(table)

    def contracts(self) -> Mapping[str, Contract]:
        """See `Catalog.contracts`."""
        return self.catalog.contracts()

    def path(self, *parts: str) -> str:
        """See `Store.path`."""
        return self.store.path(*parts)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See `Store.put_if_absent`."""
        return self.store.put_if_absent(name, data)
