"""A lake: its store, its catalog of contracts, its open tables, and its configuration.

Every `Lake.create` asks the store to write the lake's marker again if it is absent, which it is not: a store that does
so all the same would let two commits of one number both win, and is refused. That costs one request and leaves nothing.
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
    """An open lake, for what uses more than one of its parts; a function that uses one takes that.

    Attributes
    ----------
    store
        Where its bytes are kept.
    catalog
        The contracts that it goes by.
    tables
        The tables that this process keeps open.
    config
        What the operator configured of it.
    """

    store: Store
    catalog: Catalog = field(repr=False, compare=False)
    tables: Tables = field(repr=False, compare=False)
    config: LakeConfig = field(default=DEFAULT, repr=False)

    def __repr__(self) -> str:
        return f"<lake {redact_uri(self.uri)}>"

    def _repr_html_(self) -> str:
        """Return the same for a notebook, with the names of its tables; no table is read for that."""
        tables = ", ".join(f"<code>{escape(name)}</code>" for name in self.contracts())
        ask = "ranklake.lake.sql(&quot;SELECT …&quot;, lake)"
        return f"<p>lake <b>{escape(redact_uri(self.uri))}</b>: <code>{ask}</code> asks {tables}</p>"

    @classmethod
    def of(cls, store: Store, config: LakeConfig = DEFAULT) -> "Lake":
        """Return the lake in a store, without a look whether there is one."""
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
        """Open the lake, making it first where the place is empty or absent. Creating twice at once is harmless.

        `before_making` is called where there is no lake, and may raise to leave it at that.

        Raises `NotALakeError`, `LakeUnreachableError`, or `UnsafeStoreError`; what this call put there is gone then.
        """
        store = Store.at(uri, storage)
        made = False
        try:
            # Another process may be making the lake right now: its marker, whole or not, is no stranger's file, and
            # what it makes next comes after the marker, which is therefore looked for last.
            entries = store.fs.ls(store.root, detail=False) if store.fs.exists(store.root) else []
            strange = [path for path in entries if not path.rpartition("/")[2].startswith(MARKER)]
            marked = store.fs.exists(store.path(MARKER))
            taken = bool(strange) and not marked
            if not marked and not taken:
                before_making()
                made = store.put_if_absent(MARKER, json.dumps({"format": FORMAT, "lake": uuid.uuid4().hex}).encode())
        except OSError as error:
            raise unreachable(uri, error, store.storage) from None
        if taken:
            raise NotALakeError("not a lake, and not empty", where=uri, hint="name an empty place")
        marker = store.marker()
        if not store.is_local and store.overwrites(MARKER, marker):
            if made:
                with suppress(FileNotFoundError):  # another that was refused beside this one was faster
                    store.fs.rm_file(store.path(MARKER))
            raise unsafe(uri)
        return cls.of(store, config)

    def configured(self, **sections: Any) -> "Lake":  # noqa: ANN401 - a section's own type
        """Return the lake with parts of its configuration replaced; their names are the fields of `LakeConfig`."""
        return Lake.of(self.store, replace(self.config, **sections))

    def at_number(self, number: int) -> "Lake":
        """Return the lake as it knows contracts by the overlay that it kept under a number; 0 for none."""
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
