"""Digests of rows that do not depend on the files that hold them, nor on their order."""

import hashlib
import json
import struct
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ranklake.lake.tables.read import read_some

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.tables import Tables

_MOST: Final = 2**256
RECORDED_KEY: Final = ("incarnation", "segment", "slot")
"""What tells recorded rows of a table apart."""
_PACKED: Final = struct.Struct("<qii")


def key_columns(contract: "Contract", but: Collection[str] = ()) -> list[str]:
    """Return the columns that tell rows of a table apart: the recorder's key, else all, except for some."""
    if contract.envelope:
        return list(RECORDED_KEY)
    return [column.name for column in contract.columns if column.name not in but]


def keys_digest(rows: pa.Table, columns: Iterable[str]) -> int:
    """Return the sum of the digests of rows by some columns; that of no rows is 0."""
    names = list(columns)
    values = zip(*(rows[name].to_pylist() for name in names), strict=True)
    if tuple(names) == RECORDED_KEY:
        shares = (hashlib.sha256(_PACKED.pack(*key)).digest() for key in values)
    else:
        shares = (hashlib.sha256(json.dumps(key, default=str).encode()).digest() for key in values)
    return sum(int.from_bytes(share) for share in shares) % _MOST


def digest_text(total: int) -> str:
    """Return a digest as text."""
    return f"{total % _MOST:064x}"


def digest_of_files(tables: "Tables", contract: "Contract", files: pa.Table, columns: Collection[str]) -> int:
    """Return the digest of all rows of files: rows of `ranklake.lake.tables.live_files.files`."""
    return sum(keys_digest(rows, columns) for _, rows in read_some(tables, contract, files, list(columns))) % _MOST


def keys_sha256(rows: pa.Table) -> str:
    """Return the digest of the keys of recorded rows, in whatever order."""
    columns = [rows[name].to_pylist() for name in RECORDED_KEY]
    return hashlib.sha256(json.dumps(sorted(zip(*columns, strict=True))).encode()).hexdigest()
