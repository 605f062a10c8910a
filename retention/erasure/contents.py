"""What is in a file: its bytes, and what they stand for where it is Parquet, SQLite, an archive, packed, or encrypted.

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
from typing import IO, TYPE_CHECKING, Final

from ranklake.retention.erasure.columns import (
    CHUNK_BYTES,
    MOST_BYTES,
    Found,
    Hit,
    Unsearched,
    occurrences,
    parquet_columns,
)
from ranklake.segments.envelope import MAGIC as SEGMENT_MAGIC

if TYPE_CHECKING:
    from ranklake.retention.erasure.needles import Needles


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
        yield Hit("bytes", count)
    file.seek(0)
    if begin.startswith(SEGMENT_MAGIC):
        clear = decrypt(name, file.read(MOST_BYTES))
        if clear is None:
            yield Unsearched("encrypted, and no key here opens it")
        else:
            yield from look(io.BytesIO(clear), name.removesuffix(".enc"), sought, decrypt, depth + 1)
    else:
        yield from _within(file, begin, name, sought, decrypt, depth)


def _within(
    file: IO[bytes], begin: bytes, name: str, sought: "Needles", decrypt: Decrypt, depth: int
) -> Iterator[Found]:
    """Look into what a file packs, if it packs anything."""
    closed = next((how for magic, how in _CLOSED.items() if begin.startswith(magic)), "")
    unpack = next((opened for magic, opened in _PACKED.items() if begin.startswith(magic)), None)
    if closed:
        yield Unsearched(f"{closed}, which is not looked into")
    elif begin == _SQLITE:
        yield from _database(file, sought)
    elif depth >= _DEEPEST and (unpack or _is_archive(file)):
        yield Unsearched("archives within archives, too deep to look into")
    elif unpack is not None:
        yield from _unpacked(file, unpack, name, sought, decrypt, depth)
    elif _is_zip(file):
        yield from _zip(file, sought, decrypt, depth)
    elif _is_tar(file):
        yield from _tar(file, sought, decrypt, depth)
    elif begin.startswith(b"PK\x03\x04"):
        yield Unsearched("an archive that cannot be read (BadZipFile)")


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
        yield Unsearched(f"a database that cannot be read ({type(error).__name__})")
    yield from (Hit(f"table {table}", count) for table, count in counts.items() if count)


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


def _tar(file: IO[bytes], sought: "Needles", decrypt: Decrypt, depth: int) -> Iterator[Found]:
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                if count := sought.count(f"{member.name} {member.linkname}".encode(errors="replace")):
                    yield Hit("name of a member", count)
                packed = archive.extractfile(member) if member.isreg() else None
                if packed is not None and member.size > MOST_BYTES:
                    yield Unsearched("a member is too large to look into")
                elif packed is not None:
                    yield from look(io.BytesIO(packed.read()), member.name, sought, decrypt, depth + 1)
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        yield Unsearched(f"an archive that cannot be read ({type(error).__name__})")


def _unpacked(
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
        yield Unsearched(f"packed bytes that cannot be read to their end ({type(error).__name__})")
    if clear.tell() > MOST_BYTES:
        yield Unsearched("packed bytes that are too large to look into")
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
