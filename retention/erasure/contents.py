"""Searches the content of a file: its bytes, and the data in Parquet, SQLite, archives, packed and encrypted files.

A file may be damaged, or built to exhaust memory. Parts that cannot be searched are reported with the reason.
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
"""Largest size that is searched of a member of an archive, of unpacked bytes, and of a decoded row group."""


@dataclass(frozen=True, slots=True)
class ContentMatch:
    """Matches in a part of a file: `where`, and how many. In a column `count` is rows, elsewhere occurrences."""

    where: str
    count: int


@dataclass(frozen=True, slots=True)
class UnsearchedPart:
    """A file or a part of it could not be searched, with the reason."""

    why: str


Found = ContentMatch | UnsearchedPart


def occurrences(file: IO[bytes], needles: "Needles") -> int:
    """Return the number of matches in the bytes of a file, including matches across two pieces."""
    tail, count = b"", 0
    while piece := file.read(CHUNK_BYTES):
        joined = tail + piece
        tail = joined[len(joined) - (needles.longest - 1) :] if len(joined) >= needles.longest else joined
        count += needles.count(joined) - needles.count(tail)  # matches in the tail count with the next piece
    return count + needles.count(tail)


_BATCH_ROWS: Final = 65_536
_FOOTER: Final = 8
LEFT_WORDS: Final = "words that no row has, column"
"""Place of a match in a Parquet dictionary alone. ranklake writes no unused dictionary values; other programs may."""


def parquet_columns(file: IO[bytes], needles: "Needles") -> Iterator[Found]:
    """Yield the matches in a Parquet file: in its columns and its footer, or in the bytes of a damaged file."""
    try:
        metadata = pq.read_metadata(file)
        stored = pq.ParquetFile(file, metadata=metadata, read_dictionary=_dictionary_columns(metadata))
        yield from _columns(stored, needles)
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - _FOOTER))
        footer_bytes = int.from_bytes(file.read(_FOOTER)[:4], "little")
        file.seek(max(0, size - _FOOTER - footer_bytes))
        if count := needles.count(file.read(footer_bytes)):
            yield ContentMatch("footer: statistics or metadata", count)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        yield UnsearchedPart(f"Parquet that cannot be read ({type(error).__name__})")
        file.seek(0)
        if count := occurrences(file, needles):
            yield ContentMatch("bytes", count)


def _columns(stored: pq.ParquetFile, needles: "Needles") -> Iterator[Found]:
    metadata = stored.metadata
    counts: Counter[str] = Counter()
    groups = range(metadata.num_row_groups)
    small = [group for group in groups if metadata.row_group(group).total_byte_size <= MOST_BYTES]
    if len(small) < metadata.num_row_groups:
        yield UnsearchedPart(f"{metadata.num_row_groups - len(small)} row groups are too large to decode")
    texts = [field.name for field in stored.schema_arrow if has_text(field.type)]
    word_counts: Counter[str] = Counter()
    for batch in stored.iter_batches(_BATCH_ROWS, row_groups=small, columns=texts) if texts else ():
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            rows, words = _count_matches(column, needles)
            if name in needles.short.columns:
                rows += int(pc.sum(needles.short.rows(name, column)).as_py() or 0)
                words += any(needles.short.is_all_of(name, text) for text in _dictionary_words(column))
            counts[name] += rows
            word_counts[name] += words
    yield from (ContentMatch(f"column {name}", count) for name, count in counts.items() if count)
    unused = (name for name, words in word_counts.items() if words and not counts[name])
    yield from (ContentMatch(f"{LEFT_WORDS} {name}", 1) for name in unused)


def _dictionary_columns(metadata: pq.FileMetaData) -> list[str]:
    """Return the columns with a dictionary, which may have values that no row has."""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    columns = [group.column(index) for group in groups for index in range(group.num_columns)]
    return sorted(
        {
            column.path_in_schema
            for column in columns
            if column.has_dictionary_page and column.physical_type == "BYTE_ARRAY"
        }
    )


def has_text(kind: pa.DataType) -> bool:
    """Return whether values of a type can contain text, at any depth."""
    if isinstance(kind, pa.BaseExtensionType):
        return has_text(kind.storage_type)
    if pa.types.is_nested(kind):
        return any(has_text(kind.field(index).type) for index in range(kind.num_fields))
    if pa.types.is_dictionary(kind):
        return has_text(kind.value_type)
    return any(is_kind(kind) for is_kind in _TEXT)


_TEXT: Final = (
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary),
    *(pa.types.is_string_view, pa.types.is_binary_view, pa.types.is_fixed_size_binary),
)


def _count_matches(column: pa.Array, needles: "Needles") -> tuple[int, int]:
    """Return the number of matching rows of a column, and of matching words of its dictionary.

    For a nested column, counts the matching values at any depth instead of rows.
    """
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        is_match = match_values(column.dictionary, needles)
        rows = pc.sum(pc.take(is_match, column.indices)).as_py() if pc.any(is_match).as_py() else 0
        return int(rows or 0), int(pc.sum(is_match).as_py() or 0)
    if pa.types.is_nested(column.type):
        parts = [_count_matches(part, needles) for part in _parts(column) if has_text(part.type)]
        return sum(rows for rows, _ in parts), sum(words for _, words in parts)
    return int(pc.sum(match_values(column, needles)).as_py() or 0), 0


def match_values(column: pa.Array, needles: "Needles") -> pa.Array:
    """Return a Boolean for each text or bytes value: whether it contains a value. False for NULL."""
    mask = pa.repeat(pa.scalar(value=False), len(column))
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        for text in needles.texts:
            matched = pc.match_substring(column, text, ignore_case=True)
            mask = pc.or_(mask, pc.fill_null(matched, fill_value=False))
        if pc.any(mask).as_py():  # Arrow's search ignores word boundaries
            pairs = zip(mask.to_pylist(), column.to_pylist(), strict=True)
            mask = pa.array([is_match and needles.count(text.encode()) > 0 for is_match, text in pairs], pa.bool_())
    rest = pc.if_else(mask, None, column.cast(pa.large_binary())).to_pylist()
    if not needles.count(b"\0".join(filter(None, rest))):
        return mask
    return pc.or_(mask, pa.array([value is not None and needles.count(value) > 0 for value in rest]))


def _dictionary_words(column: pa.Array) -> list[object]:
    words: list[object] = column.dictionary.to_pylist() if pa.types.is_dictionary(column.type) else []
    return words


def _parts(column: pa.Array) -> list[pa.Array]:
    if pa.types.is_struct(column.type):
        return list(column.flatten())
    if pa.types.is_map(column.type):
        return [column.keys, column.items]
    return [column.flatten()]


def rows_holding(rows: pa.Table, needles: "Needles") -> pa.Array:
    """Return a Boolean for each row of a table: whether any of its columns contains a value."""
    mask = pa.repeat(pa.scalar(value=False), rows.num_rows)
    for name in rows.column_names:
        if has_text(rows.schema.field(name).type) and rows.num_rows:
            chunks = rows[name].chunks
            mask = pc.or_(mask, pa.concat_arrays([_marks(chunk, needles) for chunk in chunks]))
            mask = pc.or_(mask, pa.concat_arrays([needles.short.rows(name, chunk) for chunk in chunks]))
    return mask


def _marks(column: pa.Array, needles: "Needles") -> pa.Array:
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        return pc.fill_null(match_values(column.dictionary, needles).take(column.indices), fill_value=False)
    if pa.types.is_nested(column.type):
        return pa.array([any(map(needles.count, _texts_within(value))) for value in column.to_pylist()], pa.bool_())
    return match_values(column, needles)


def _texts_within(value: object) -> Iterator[bytes]:
    """Yield the texts and bytes in a nested value, as bytes."""
    if isinstance(value, str):
        yield value.encode()
    elif isinstance(value, bytes):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts_within(part)


_SQLITE: Final = b"SQLite format 3\0"
LOGS: Final = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
"""First bytes of a write-ahead log, whose pages are in the database only after a checkpoint."""
_MODES: Final = slice(18, 20)
_BY_ROLLBACK: Final = b"\1\1"
_ROWS: Final = 256
_TABLES: Final = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
_EVERY: Final = 'SELECT * FROM "{}"'


def database_rows(raw: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Yield table and rows of a SQLite database in batches; each row as the bytes of its texts and blobs.

    Works in memory and creates no file. Rows in a write-ahead log are missing. Raises `sqlite3.Error` for a
    damaged database.
    """
    image = bytearray(raw)
    image[_MODES] = _BY_ROLLBACK * (len(image) >= _MODES.stop)  # the image has no write-ahead log
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
"""Takes a segment's path, whose folder is its table, and its bytes; returns the clear bytes, or None without a key."""


def look(file: IO[bytes], name: str, needles: "Needles", decrypt: Decrypt, depth: int = 0) -> Iterator[Found]:
    """Yield the matches in a seekable file, and the parts that could not be searched.

    Parameters
    ----------
    name
        Path of the file. The key of an encrypted segment is found by the file's name and folder.
    """
    begin = file.read(_MAGIC_BYTES)
    file.seek(0)
    if begin.startswith(b"PAR1"):
        yield from parquet_columns(file, needles)
        return
    if count := occurrences(file, needles):
        yield ContentMatch("bytes", count)
    file.seek(0)
    if begin.startswith(SEGMENT_MAGIC):
        clear = decrypt(name, file.read(MOST_BYTES))
        if clear is None:
            yield UnsearchedPart("encrypted, and no key here opens it")
        else:
            yield from look(io.BytesIO(clear), name.removesuffix(".enc"), needles, decrypt, depth + 1)
    else:
        yield from _search_packed_file(file, begin, name, needles, decrypt, depth)


def _search_packed_file(
    file: IO[bytes], begin: bytes, name: str, needles: "Needles", decrypt: Decrypt, depth: int
) -> Iterator[Found]:
    """Search the data in a packed file, an archive or a database; yield nothing for other files."""
    closed = next((noun for magic, noun in _CLOSED.items() if begin.startswith(magic)), "")
    unpack = next((opener for magic, opener in _PACKED.items() if begin.startswith(magic)), None)
    if closed:
        yield UnsearchedPart(f"{closed}, which is not looked into")
    elif begin == _SQLITE:
        yield from _database(file, needles)
    elif depth >= _DEEPEST and (unpack or _is_archive(file)):
        yield UnsearchedPart("archives within archives, too deep to look into")
    elif unpack is not None:
        yield from _search_packed(file, unpack, name, needles, decrypt, depth)
    elif _is_zip(file):
        yield from _zip(file, needles, decrypt, depth)
    elif _is_tar(file):
        yield from _tar(file, needles, decrypt, depth)
    elif begin.startswith(b"PK\x03\x04"):
        yield UnsearchedPart("an archive that cannot be read (BadZipFile)")


def _is_archive(file: IO[bytes]) -> bool:
    return _is_zip(file) or _is_tar(file)


def _is_zip(file: IO[bytes]) -> bool:
    """Return whether a file is a zip archive."""
    # In a shorter file, zipfile would seek before the start, which files of object stores refuse.
    is_long_enough = file.seek(0, 2) >= _LEAST_ZIP
    file.seek(0)
    return is_long_enough and zipfile.is_zipfile(file)


def _is_tar(file: IO[bytes]) -> bool:
    file.seek(_TAR_AT)
    magic = file.read(len(_TAR))
    file.seek(0)
    return magic == _TAR


def _database(file: IO[bytes], needles: "Needles") -> Iterator[Found]:
    counts: Counter[str] = Counter()
    try:
        for table, rows in database_rows(file.read(MOST_BYTES)):
            if needles.count(b"\0".join(rows)):
                counts[table] += sum(needles.count(row) > 0 for row in rows)
    except (sqlite3.Error, ValueError, MemoryError) as error:
        yield UnsearchedPart(f"a database that cannot be read ({type(error).__name__})")
    yield from (ContentMatch(f"table {table}", count) for table, count in counts.items() if count)


def _zip(file: IO[bytes], needles: "Needles", decrypt: Decrypt, depth: int) -> Iterator[Found]:
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if count := needles.count(member.filename.encode()):
                    yield ContentMatch("name of a member", count)
                with archive.open(member) as packed:
                    clear = packed.read(MOST_BYTES + 1)
                if len(clear) > MOST_BYTES:
                    yield UnsearchedPart("a member is too large to look into")
                else:
                    yield from look(io.BytesIO(clear), member.filename, needles, decrypt, depth + 1)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError, ValueError, zlib.error) as error:
        yield UnsearchedPart(f"an archive that cannot be read ({type(error).__name__})")


def _tar(file: IO[bytes], needles: "Needles", decrypt: Decrypt, depth: int) -> Iterator[Found]:
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                if count := needles.count(f"{member.name} {member.linkname}".encode(errors="replace")):
                    yield ContentMatch("name of a member", count)
                packed = archive.extractfile(member) if member.isreg() else None
                if packed is not None and member.size > MOST_BYTES:
                    yield UnsearchedPart("a member is too large to look into")
                elif packed is not None:
                    yield from look(io.BytesIO(packed.read()), member.name, needles, decrypt, depth + 1)
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        yield UnsearchedPart(f"an archive that cannot be read ({type(error).__name__})")


def _search_packed(
    file: IO[bytes],
    unpack: Callable[[IO[bytes]], io.BufferedIOBase],
    name: str,
    needles: "Needles",
    decrypt: Decrypt,
    depth: int,
) -> Iterator[Found]:
    """Search the unpacked bytes of a file; for a damaged file, those before the damage."""
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
    yield from look(clear, inner, needles, decrypt, depth + 1)


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
"""Formats with packed or split data that are not searched, by their first bytes."""
