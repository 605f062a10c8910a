"""What a file holds: its bytes, and what they stand for in Parquet, SQLite, archives, and what is packed or encrypted.

Nothing is trusted: a file may be damaged, or made to fill memory. What cannot be looked into is said to be so.
"""

import bz2
import gzip
import io
import lzma
import sqlite3
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ranklake.segments.envelope import MAGIC as SEGMENT_MAGIC

if TYPE_CHECKING:
    from ranklake.retention.erasure.needles import Needles

CHUNK_BYTES: Final = 4 * 2**20
MOST_BYTES: Final = 2**30
"""Of a member of an archive, of what gzip holds, and of a row group once decoded."""


@dataclass(frozen=True, slots=True)
class ContentMatch:
    """A value that was found: `where` in the file, and how often; rows where it is a column, else occurrences."""

    where: str
    count: int


@dataclass(frozen=True, slots=True)
class UnsearchedPart:
    """A file, or a part of it, that could not be looked into, and why."""

    why: str


Found = ContentMatch | UnsearchedPart


def occurrences(file: IO[bytes], sought: "Needles") -> int:
    """Count occurrences in bytes; one that lies across two pieces is found, too."""
    kept, count = b"", 0
    while piece := file.read(CHUNK_BYTES):
        both = kept + piece
        kept = both[len(both) - (sought.longest - 1) :] if len(both) >= sought.longest else both
        count += sought.count(both) - sought.count(kept)
    return count + sought.count(kept)


_BATCH_ROWS: Final = 65_536
_FOOTER: Final = 8
LEFT_WORDS: Final = "words that no row has, column"
"""Of a dictionary. ranklake writes none; other programs may."""


def parquet_columns(file: IO[bytes], sought: "Needles") -> Iterator[Found]:
    """Yield what is found in a Parquet file, by column, and in its footer; of a damaged one, in its bytes."""
    try:
        metadata = pq.read_metadata(file)
        stored = pq.ParquetFile(file, metadata=metadata, read_dictionary=_dictionary_columns(metadata))
        yield from _columns(stored, sought)
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - _FOOTER))
        footer_bytes = int.from_bytes(file.read(_FOOTER)[:4], "little")
        file.seek(max(0, size - _FOOTER - footer_bytes))
        if count := sought.count(file.read(footer_bytes)):
            yield ContentMatch("footer: statistics or metadata", count)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        yield UnsearchedPart(f"Parquet that cannot be read ({type(error).__name__})")
        file.seek(0)
        if count := occurrences(file, sought):
            yield ContentMatch("bytes", count)


def _columns(stored: pq.ParquetFile, sought: "Needles") -> Iterator[Found]:
    metadata = stored.metadata
    counts: Counter[str] = Counter()
    small = [at for at in range(metadata.num_row_groups) if metadata.row_group(at).total_byte_size <= MOST_BYTES]
    if len(small) < metadata.num_row_groups:
        yield UnsearchedPart(f"{metadata.num_row_groups - len(small)} row groups are too large to decode")
    texts = [field.name for field in stored.schema_arrow if has_text(field.type)]
    words: Counter[str] = Counter()
    for batch in stored.iter_batches(_BATCH_ROWS, row_groups=small, columns=texts) if texts else ():
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            rows, known = _rows_with(column, sought)
            if name in sought.short.columns:
                rows += int(pc.sum(sought.short.rows(name, column)).as_py() or 0)
                known += any(sought.short.is_all_of(name, text) for text in _known_words(column))
            counts[name] += rows
            words[name] += known
    yield from (ContentMatch(f"column {name}", count) for name, count in counts.items() if count)
    yield from (ContentMatch(f"{LEFT_WORDS} {name}", 1) for name, known in words.items() if known and not counts[name])


def _dictionary_columns(metadata: pq.FileMetaData) -> list[str]:
    """Return the columns that have a dictionary: rows that went when a file was written may have left words in it."""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    columns = [group.column(at) for group in groups for at in range(group.num_columns)]
    return sorted(
        {
            column.path_in_schema
            for column in columns
            if column.has_dictionary_page and column.physical_type == "BYTE_ARRAY"
        }
    )


def has_text(kind: pa.DataType) -> bool:
    """Return whether values of a type can hold text, at any depth."""
    if isinstance(kind, pa.BaseExtensionType):
        return has_text(kind.storage_type)
    if pa.types.is_nested(kind):
        return any(has_text(kind.field(at).type) for at in range(kind.num_fields))
    if pa.types.is_dictionary(kind):
        return has_text(kind.value_type)
    return any(is_kind(kind) for is_kind in _TEXT)


_TEXT: Final = (
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary),
    *(pa.types.is_string_view, pa.types.is_binary_view, pa.types.is_fixed_size_binary),
)


def _rows_with(column: pa.Array, sought: "Needles") -> tuple[int, int]:
    """Count rows of a column that hold a value, at any depth, of nested ones the values that do; and words that do."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        holds = holding(column.dictionary, sought)
        rows = pc.sum(pc.take(holds, column.indices)).as_py() if pc.any(holds).as_py() else 0
        return int(rows or 0), int(pc.sum(holds).as_py() or 0)
    if pa.types.is_nested(column.type):
        parts = [_rows_with(part, sought) for part in _parts(column) if has_text(part.type)]
        return sum(rows for rows, _ in parts), sum(words for _, words in parts)
    return int(pc.sum(holding(column, sought)).as_py() or 0), 0


def holding(column: pa.Array, sought: "Needles") -> pa.Array:
    """Return which of some texts, or bytes, hold a value; no NULL."""
    mask = pa.repeat(pa.scalar(value=False), len(column))
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        for text in sought.texts:
            matched = pc.match_substring(column, text, ignore_case=True)
            mask = pc.or_(mask, pc.fill_null(matched, fill_value=False))
        if pc.any(mask).as_py():  # Arrow folds letter by letter, and knows no words
            pairs = zip(mask.to_pylist(), column.to_pylist(), strict=True)
            mask = pa.array([hit and sought.count(text.encode()) > 0 for hit, text in pairs], pa.bool_())
    rest = pc.if_else(mask, None, column.cast(pa.large_binary())).to_pylist()
    if not sought.count(b"\0".join(filter(None, rest))):
        return mask
    return pc.or_(mask, pa.array([value is not None and sought.count(value) > 0 for value in rest]))


def _known_words(column: pa.Array) -> list[object]:
    words: list[object] = column.dictionary.to_pylist() if pa.types.is_dictionary(column.type) else []
    return words


def _parts(column: pa.Array) -> list[pa.Array]:
    if pa.types.is_struct(column.type):
        return list(column.flatten())
    if pa.types.is_map(column.type):
        return [column.keys, column.items]
    return [column.flatten()]


def rows_holding(rows: pa.Table, sought: "Needles") -> pa.Array:
    """Return true where a row of a table holds a value in any column; no NULL."""
    mask = pa.repeat(pa.scalar(value=False), rows.num_rows)
    for name in rows.column_names:
        if has_text(rows.schema.field(name).type) and rows.num_rows:
            chunks = rows[name].chunks
            mask = pc.or_(mask, pa.concat_arrays([_marks(chunk, sought) for chunk in chunks]))
            mask = pc.or_(mask, pa.concat_arrays([sought.short.rows(name, chunk) for chunk in chunks]))
    return mask


def _marks(column: pa.Array, sought: "Needles") -> pa.Array:
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        return pc.fill_null(holding(column.dictionary, sought).take(column.indices), fill_value=False)
    if pa.types.is_nested(column.type):
        return pa.array([any(map(sought.count, _texts_within(value))) for value in column.to_pylist()], pa.bool_())
    return holding(column, sought)


def _texts_within(value: object) -> Iterator[bytes]:
    """Yield what texts there are in a value, as bytes."""
    if isinstance(value, str):
        yield value.encode()
    elif isinstance(value, bytes):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts_within(part)


_SQLITE: Final = b"SQLite format 3\0"
LOGS: Final = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
"""How a write-ahead log begins: pages that are in its database only after a checkpoint."""
_MODES: Final = slice(18, 20)
_BY_ROLLBACK: Final = b"\1\1"
_ROWS: Final = 256
_TABLES: Final = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
_EVERY: Final = 'SELECT * FROM "{}"'


def database_rows(raw: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the tables of a database with some of their rows each time: text and bytes of each row as bytes.

    Raises `sqlite3.Error` if it is damaged. Nothing is opened for writing, no file is made. Rows that a write-ahead log
    has are not there.
    """
    image = bytearray(raw)
    image[_MODES] = _BY_ROLLBACK * (len(image) >= _MODES.stop)  # in memory there is no log to look for
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(bytes(image))
        connection.text_factory = bytes
        for (name,) in connection.execute(_TABLES).fetchall():
            rows = connection.execute(_EVERY.format(name.decode().replace('"', '""')))
            while batch := rows.fetchmany(_ROWS):
                yield name.decode(errors="replace"), [_texts(row) for row in batch]


def _texts(row: tuple[object, ...]) -> bytes:
    return b"\0".join(value for value in row if isinstance(value, bytes))


_DEEPEST: Final = 4
_MAGIC_BYTES: Final = 16
_LEAST_ZIP: Final = 22
"""Bytes of an empty zip archive."""
_TAR_AT, _TAR = 257, b"ustar"

Decrypt = Callable[[str, bytes], bytes | None]
"""Given a segment's path, whose folder is its table, and bytes, returns what these stand for; None without a key."""


def look(file: IO[bytes], name: str, sought: "Needles", decrypt: Decrypt, depth: int = 0) -> Iterator[Found]:
    """Yield what is found in a file that can be sought in, and what could not be looked into.

    Parameters
    ----------
    name
        Path of the file: an encrypted segment is known by it, and by the folder that it is in.
    """
    begin = file.read(_MAGIC_BYTES)
    file.seek(0)
    if begin.startswith(b"PAR1"):
        yield from parquet_columns(file, sought)
        return
    if count := occurrences(file, sought):
        yield ContentMatch("bytes", count)
    file.seek(0)
    if begin.startswith(SEGMENT_MAGIC):
        clear = decrypt(name, file.read(MOST_BYTES))
        if clear is None:
            yield UnsearchedPart("encrypted, and no key here opens it")
        else:
            yield from look(io.BytesIO(clear), name.removesuffix(".enc"), sought, decrypt, depth + 1)
    else:
        yield from _search_packed_file(file, begin, name, sought, decrypt, depth)


def _search_packed_file(
    file: IO[bytes], begin: bytes, name: str, sought: "Needles", decrypt: Decrypt, depth: int
) -> Iterator[Found]:
    """Look into what a file packs, if it packs anything."""
    closed = next((how for magic, how in _CLOSED.items() if begin.startswith(magic)), "")
    unpack = next((opened for magic, opened in _PACKED.items() if begin.startswith(magic)), None)
    if closed:
        yield UnsearchedPart(f"{closed}, which is not looked into")
    elif begin == _SQLITE:
        yield from _database(file, sought)
    elif depth >= _DEEPEST and (unpack or _is_archive(file)):
        yield UnsearchedPart("archives within archives, too deep to look into")
    elif unpack is not None:
        yield from _search_packed(file, unpack, name, sought, decrypt, depth)
    elif _is_zip(file):
        yield from _zip(file, sought, decrypt, depth)
    elif _is_tar(file):
        yield from _tar(file, sought, decrypt, depth)
    elif begin.startswith(b"PK\x03\x04"):
        yield UnsearchedPart("an archive that cannot be read (BadZipFile)")


def _is_archive(file: IO[bytes]) -> bool:
    return _is_zip(file) or _is_tar(file)


def _is_zip(file: IO[bytes]) -> bool:
    """Return whether a file is a zip archive."""
    # zipfile would seek before the start of a shorter file, which files of stores refuse
    long_enough = file.seek(0, 2) >= _LEAST_ZIP
    file.seek(0)
    return long_enough and zipfile.is_zipfile(file)


def _is_tar(file: IO[bytes]) -> bool:
    file.seek(_TAR_AT)
    magic = file.read(len(_TAR))
    file.seek(0)
    return magic == _TAR


def _database(file: IO[bytes], sought: "Needles") -> Iterator[Found]:
    counts: Counter[str] = Counter()
    try:
        for table, rows in database_rows(file.read(MOST_BYTES)):
            if sought.count(b"\0".join(rows)):
                counts[table] += sum(sought.count(row) > 0 for row in rows)
    except (sqlite3.Error, ValueError, MemoryError) as error:
        yield UnsearchedPart(f"a database that cannot be read ({type(error).__name__})")
    yield from (ContentMatch(f"table {table}", count) for table, count in counts.items() if count)


def _zip(file: IO[bytes], sought: "Needles", decrypt: Decrypt, depth: int) -> Iterator[Found]:
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if count := sought.count(member.filename.encode()):
                    yield ContentMatch("name of a member", count)
                with archive.open(member) as packed:
                    clear = packed.read(MOST_BYTES + 1)
                if len(clear) > MOST_BYTES:
                    yield UnsearchedPart("a member is too large to look into")
                else:
                    yield from look(io.BytesIO(clear), member.filename, sought, decrypt, depth + 1)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError, ValueError, zlib.error) as error:
        yield UnsearchedPart(f"an archive that cannot be read ({type(error).__name__})")


def _tar(file: IO[bytes], sought: "Needles", decrypt: Decrypt, depth: int) -> Iterator[Found]:
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                if count := sought.count(f"{member.name} {member.linkname}".encode(errors="replace")):
                    yield ContentMatch("name of a member", count)
                packed = archive.extractfile(member) if member.isreg() else None
                if packed is not None and member.size > MOST_BYTES:
                    yield UnsearchedPart("a member is too large to look into")
                elif packed is not None:
                    yield from look(io.BytesIO(packed.read()), member.name, sought, decrypt, depth + 1)
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        yield UnsearchedPart(f"an archive that cannot be read ({type(error).__name__})")


def _search_packed(
    file: IO[bytes],
    unpack: Callable[[IO[bytes]], io.BufferedIOBase],
    name: str,
    sought: "Needles",
    decrypt: Decrypt,
    depth: int,
) -> Iterator[Found]:
    """Look into what one packed stream holds; what comes before damage is looked into, too."""
    clear = io.BytesIO()
    try:
        with unpack(file) as packed:
            while (piece := packed.read1(CHUNK_BYTES)) and clear.tell() <= MOST_BYTES:
                clear.write(piece)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        yield UnsearchedPart(f"packed bytes that cannot be read to their end ({type(error).__name__})")
    if clear.tell() > MOST_BYTES:
        yield UnsearchedPart("packed bytes that are too large to look into")
    clear.seek(0)
    inner = name.rpartition(".")[0] if name.endswith((".gz", ".bz2", ".xz")) else name
    yield from look(clear, inner, sought, decrypt, depth + 1)


def _gunzip(file: IO[bytes]) -> io.BufferedIOBase:
    return gzip.GzipFile(fileobj=file)


_PACKED: Final[Mapping[bytes, Callable[[IO[bytes]], io.BufferedIOBase]]] = {
    b"\x1f\x8b": _gunzip,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
_CLOSED: Final[Mapping[bytes, str]] = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"ARROW1": "an Arrow file",
    b"PARE": "encrypted Parquet",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"Rar!": "a RAR archive",
    b"x\x9c": "zlib",
    b"x\xda": "zlib",
    b"\x1f\x9d": "compress",
    b"LZIP": "lzip",
    b"\xff\x06\x00\x00sNaPpY": "snappy",
    b"Obj\x01": "Avro",
    b"\x89HDF\r\n\x1a\n": "HDF5",
    b"%PDF-": "a PDF",
    **dict.fromkeys(LOGS, "rows of SQLite that are not in its database yet"),
}
"""Forms that pack what they hold, or have it in pieces, by how they begin."""
