"""Columns of Parquet: text and bytes at any depth, words of dictionaries that no row has, and the footer."""

import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from ranklake.retention.erasure.needles import Needles


CHUNK_BYTES: Final = 4 * 2**20
MOST_BYTES: Final = 2**30
"""Of a member of an archive, of what gzip holds, and of a row group once decoded."""


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


def occurrences(file: IO[bytes], sought: "Needles") -> int:
    """Count occurrences in bytes; one that lies across two pieces is found, too."""
    kept, count = b"", 0
    while piece := file.read(CHUNK_BYTES):
        both = kept + piece
        kept = both[len(both) - (sought.longest - 1) :] if len(both) >= sought.longest else both
        count += sought.count(both) - sought.count(kept)
    return count + sought.count(kept)


_ROWS: Final = 65_536
_FOOTER: Final = 8
LEFT_WORDS: Final = "words that no row has, column"
"""Of a dictionary. ranklake writes none; other programs may."""


def parquet_columns(file: IO[bytes], sought: "Needles") -> Iterator[Found]:
    """Yield what is found in a Parquet file, by column, and in its footer; of a damaged one, in its bytes."""
    try:
        metadata = pq.read_metadata(file)
        stored = pq.ParquetFile(file, metadata=metadata, read_dictionary=_worded(metadata))
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
        if count := occurrences(file, sought):
            yield Hit("bytes", count)


def _columns(stored: pq.ParquetFile, sought: "Needles") -> Iterator[Found]:
    metadata = stored.metadata
    counts: Counter[str] = Counter()
    small = [at for at in range(metadata.num_row_groups) if metadata.row_group(at).total_byte_size <= MOST_BYTES]
    if len(small) < metadata.num_row_groups:
        yield Unsearched(f"{metadata.num_row_groups - len(small)} row groups are too large to decode")
    texts = [field.name for field in stored.schema_arrow if has_text(field.type)]
    words: Counter[str] = Counter()
    for batch in stored.iter_batches(_ROWS, row_groups=small, columns=texts) if texts else ():
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            rows, known = _rows_with(column, sought)
            if name in sought.short.columns:
                rows += int(pc.sum(sought.short.rows(name, column)).as_py() or 0)
                known += any(sought.short.is_all_of(name, text) for text in _known_words(column))
            counts[name] += rows
            words[name] += known
    yield from (Hit(f"column {name}", count) for name, count in counts.items() if count)
    yield from (Hit(f"{LEFT_WORDS} {name}", 1) for name, known in words.items() if known and not counts[name])


def _worded(metadata: pq.FileMetaData) -> list[str]:
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
        return pa.array([any(map(sought.count, _texts(value))) for value in column.to_pylist()], pa.bool_())
    return holding(column, sought)


def _texts(value: object) -> Iterator[bytes]:
    """Yield what texts there are in a value, as bytes."""
    if isinstance(value, str):
        yield value.encode()
    elif isinstance(value, bytes):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)
