"""What is in a file: its bytes, and what they stand for where it is Parquet, an archive, packed, or encrypted.

Nothing is trusted: a file may be damaged, or made to fill memory. What cannot be looked into is said to be so.
"""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ranklake.segments.envelope import MAGIC

if TYPE_CHECKING:
    from ranklake.retention.traces.needles import Needles

CHUNK_BYTES: Final = 4 * 2**20
MOST_BYTES: Final = 2**30
"""Of a member of an archive, of what gzip holds, and of a row group once decoded."""
_ROWS: Final = 65_536
_DEEPEST: Final = 4
_FOOTER: Final = 8
_MAGIC_BYTES: Final = 8
_TAR_AT, _TAR = 257, b"ustar"

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
    begin = file.read(_MAGIC_BYTES)
    file.seek(0)
    if begin.startswith(b"PAR1"):
        yield from _parquet(file, sought)
        return
    if count := _raw(file, sought):
        yield Hit("bytes", count)
    file.seek(0)
    if begin.startswith(MAGIC):
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
    elif depth >= _DEEPEST and (unpack or _is_archive(file)):
        yield Unsearched("archives within archives, too deep to look into")
    elif unpack is not None:
        yield from _unpacked(file, unpack, name, sought, decrypt, depth)
    elif zipfile.is_zipfile(file):
        yield from _zip(file, sought, decrypt, depth)
    elif _is_tar(file):
        yield from _tar(file, sought, decrypt, depth)
    elif begin.startswith(b"PK\x03\x04"):
        yield Unsearched("an archive that cannot be read (BadZipFile)")


def _is_archive(file: IO[bytes]) -> bool:
    return zipfile.is_zipfile(file) or _is_tar(file)


def _is_tar(file: IO[bytes]) -> bool:
    file.seek(_TAR_AT)
    magic = file.read(len(_TAR))
    file.seek(0)
    return magic == _TAR


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
    if isinstance(kind, pa.BaseExtensionType):
        return _has_text(kind.storage_type)
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
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
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
            while (piece := packed.read(CHUNK_BYTES)) and clear.tell() <= MOST_BYTES:
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
}
"""Forms that pack what they hold, by how they begin."""
