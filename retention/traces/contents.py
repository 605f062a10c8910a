"""What is in a file: its bytes, and what they stand for where it is Parquet, a ZIP archive, gzip, or encrypted.

Nothing is trusted: a file may be damaged, or made to fill memory. What cannot be looked into is said to be so.
"""

import gzip
import io
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from ranklake.retention.traces.needles import Needles

CHUNK_BYTES: Final = 4 * 2**20
MOST_BYTES: Final = 2**30
"""Of a member of an archive, of what gzip holds, and of a row group once decoded."""
_ROWS: Final = 65_536
_DEEPEST: Final = 4
_FOOTER: Final = 8

Decrypt = Callable[[str, bytes], bytes | None]
"""Given a segment's path, whose folder is its table, and bytes, returns what these stand for; None without a key."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A value that was found: `where` in the file, and how often; rows where it is a column, else occurrences."""

    where: str
    count: int


@dataclass(frozen=True, slots=True)
class Unsearched:
    """A file, or a part of it, that could not be looked into, and why."""

    why: str


Found = Hit | Unsearched


def look(file: IO[bytes], name: str, sought: "Needles", decrypt: Decrypt, depth: int = 0) -> Iterator[Found]:
    """Yield what is found in a file that can be sought in, and what could not be looked into.

    Parameters
    ----------
    name
        Path of the file: an encrypted segment is known by it, and by the folder that it is in.
    """
    begin = file.read(4)
    file.seek(0)
    if begin == b"PAR1":
        yield from _parquet(file, sought)
        return
    if count := _raw(file, sought):
        yield Hit("bytes", count)
    file.seek(0)
    if depth >= _DEEPEST:
        yield Unsearched("archives within archives, too deep to look into")
    elif begin == b"PK\x03\x04":
        yield from _zip(file, sought, decrypt, depth)
    elif begin[:2] == b"\x1f\x8b":
        yield from _gzip(file, name, sought, decrypt, depth)
    elif name.endswith(".enc"):
        clear = decrypt(name, file.read(MOST_BYTES))
        if clear is None:
            yield Unsearched("encrypted, and no key here opens it")
        else:
            yield from look(io.BytesIO(clear), name.removesuffix(".enc"), sought, decrypt, depth + 1)


def _raw(file: IO[bytes], sought: "Needles") -> int:
    """Count occurrences in bytes; one that lies across two pieces is found, too."""
    kept, found = b"", 0
    while piece := file.read(CHUNK_BYTES):
        both = kept + piece
        kept = both[len(both) - (sought.longest - 1) :] if len(both) >= sought.longest else both
        found += sought.count(both) - sought.count(kept)
    return found + sought.count(kept)


def _parquet(file: IO[bytes], sought: "Needles") -> Iterator[Found]:
    try:
        stored = pq.ParquetFile(file)
        yield from _columns(stored, sought)
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - _FOOTER))
        footer_bytes = int.from_bytes(file.read(_FOOTER)[:4], "little")
        file.seek(max(0, size - _FOOTER - footer_bytes))
        if count := sought.count(file.read(footer_bytes)):
            yield Hit("footer: statistics or metadata", count)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        yield Unsearched(f"Parquet that cannot be read ({type(error).__name__})")
        file.seek(0)
        if count := _raw(file, sought):
            yield Hit("bytes", count)


def _columns(stored: pq.ParquetFile, sought: "Needles") -> Iterator[Found]:
    metadata = stored.metadata
    counts: Counter[str] = Counter()
    small = [at for at in range(metadata.num_row_groups) if metadata.row_group(at).total_byte_size <= MOST_BYTES]
    if len(small) < metadata.num_row_groups:
        yield Unsearched(f"{metadata.num_row_groups - len(small)} row groups are too large to decode")
    texts = [field.name for field in stored.schema_arrow if _has_text(field.type)]
    for batch in stored.iter_batches(_ROWS, row_groups=small, columns=texts) if texts else ():
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            counts[name] += _rows_with(column, sought)
    yield from (Hit(f"column {name}", count) for name, count in counts.items() if count)


def _has_text(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_text(kind.field(at).type) for at in range(kind.num_fields))
    if pa.types.is_dictionary(kind):
        return _has_text(kind.value_type)
    return any(is_kind(kind) for is_kind in _TEXT)


_TEXT: Final = (
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary),
    *(pa.types.is_string_view, pa.types.is_binary_view, pa.types.is_fixed_size_binary),
)


def _rows_with(column: pa.Array, sought: "Needles") -> int:
    """Count rows of a column that hold a value, at any depth; of nested ones the values that do."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_nested(column.type):
        return sum(_rows_with(part, sought) for part in _parts(column) if _has_text(part.type))
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return sum(
            value is not None and sought.count(bytes(value)) > 0 for value in column.cast(pa.binary()).to_pylist()
        )
    patterns = [(one, True) for one in sought.texts] + [(one.decode(), False) for one in sought.exact]
    found = pa.repeat(pa.scalar(value=False), len(column))
    for one, either_case in patterns:
        found = pc.or_(found, pc.fill_null(pc.match_substring(column, one, ignore_case=either_case), fill_value=False))
    return int(pc.sum(found).as_py() or 0)


def _parts(column: pa.Array) -> list[pa.Array]:
    if pa.types.is_struct(column.type):
        return list(column.flatten())
    if pa.types.is_map(column.type):
        return [column.keys, column.items]
    return [column.flatten()]


def _zip(file: IO[bytes], sought: "Needles", decrypt: Decrypt, depth: int) -> Iterator[Found]:
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if count := sought.count(member.filename.encode()):
                    yield Hit("name of a member", count)
                with archive.open(member) as packed:
                    clear = packed.read(MOST_BYTES + 1)
                if len(clear) > MOST_BYTES:
                    yield Unsearched("a member is too large to look into")
                else:
                    yield from look(io.BytesIO(clear), member.filename, sought, decrypt, depth + 1)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError, ValueError, zlib.error) as error:
        yield Unsearched(f"an archive that cannot be read ({type(error).__name__})")


def _gzip(file: IO[bytes], name: str, sought: "Needles", decrypt: Decrypt, depth: int) -> Iterator[Found]:
    try:
        with gzip.open(file) as packed:
            clear = packed.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        yield Unsearched(f"gzip that cannot be read ({type(error).__name__})")
        return
    if len(clear) > MOST_BYTES:
        yield Unsearched("gzip that is too large to look into")
    else:
        yield from look(io.BytesIO(clear), name.removesuffix(".gz"), sought, decrypt, depth + 1)
