"""Numbers by which the slot files of segments are found among the rows of the table ``segments``."""

import zlib
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from ranklake.lake.ingest.spool.spooled import Spooled


_INCARNATIONS, _SEGMENTS = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F

_WORD: Final = 2**64


def key_of(item: "Spooled") -> int:
    """Return a number of a slot file; two of them may share one, which costs a look."""
    assert item.name is not None
    place = item.name.incarnation * _INCARNATIONS + item.name.segment * _SEGMENTS
    return (place + zlib.crc32(item.table.encode())) % _WORD


def keys_of(look: pa.Table) -> pa.Array:
    """Return `key_of` of rows with the columns of `_LOOK`, table as a dictionary; any where there is no slot file."""
    tables = look["table"].unify_dictionaries().combine_chunks()
    words = np.array([zlib.crc32(name.encode()) for name in tables.dictionary.to_pylist()], np.uint64)
    incarnations = look["incarnation"].fill_null(0).to_numpy().astype(np.uint64)
    segments = look["segment"].fill_null(0).to_numpy().astype(np.uint64)
    places = incarnations * np.uint64(_INCARNATIONS) + segments * np.uint64(_SEGMENTS)
    return pa.array(places + words[tables.indices.to_numpy()])
