"""Parquet files put together of the column chunks of others, byte for byte: nothing is decoded.

What is needed to know where a chunk lies stands in the footer alone, so a file is taken apart by its footer, and the
new one has the same chunks at other places: their pages with the checksums that they have, bloom filters, page indexes.

Files are taken apart that are as ranklake writes them. Whatever else a footer says (a key, a sort order, other files,
fields that nobody here knows) could be wrong at another place, so such a file is left to who can decode it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from ranklake.lake.tables.parquet_fields import (
    ChunkFields,
    ElementFields,
    FileFields,
    GroupFields,
    IndexFields,
    MetaFields,
    PageFields,
    StatisticsFields,
)
from ranklake.lake.tables.thrift import BINARY, I32, I64, LIST, STRUCT, Field, Fields, Items, ThriftError, dumps, loads

if TYPE_CHECKING:
    import pyarrow as pa

_MAGIC: Final = b"PAR1"
_WRITER: Final = b"parquet-cpp-arrow version "
_TAIL: Final = 8
"""Bytes after the footer: its length, and the magic."""

Range = tuple[int, int]
"""Where something begins in a file, and where it ends."""


class _OtherFileError(ValueError):
    """A file that is not as ranklake writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A column of a row group.

    Attributes
    ----------
    meta
        Its ``ColumnMetaData``.
    pages, bloom, column_index, offset_index
        Where its pages lie, and what belongs to them; None where there is none.
    has_statistics
        Whether its statistics were kept.
    nulls
        How many NULLs it has; None where nothing says so.
    """

    meta: Fields
    pages: Range
    bloom: Range | None
    column_index: Range | None
    offset_index: Range
    has_statistics: bool
    nulls: int | None


@dataclass(frozen=True, slots=True)
class ChunkedFile:
    """A Parquet file in memory, taken apart.

    Attributes
    ----------
    whole
        All its bytes.
    version, writer
        As its footer has them.
    shapes
        By column: its elements of the schema, without its name.
    orders
        By column: how its values are compared.
    groups
        Of each row group its rows, and the chunks by column.
    """

    whole: memoryview
    version: Field
    writer: Field
    shapes: Mapping[str, Sequence[Fields]]
    orders: Mapping[str, Fields]
    groups: Sequence[tuple[int, Mapping[str, Chunk]]]

    @property
    def group_rows(self) -> list[int]:
        """Rows of each row group."""
        return [rows for rows, _ in self.groups]

    def chunks(self, name: str) -> list[Chunk]:
        """Return the chunks of a column, a row group each."""
        return [chunks[name] for _, chunks in self.groups]


@dataclass(frozen=True, slots=True)
class Part:
    """A column of a file to be: its name, and the file and the column there that it comes from."""

    name: str
    file: ChunkedFile
    source: str


def taken_apart(whole: "pa.Buffer") -> ChunkedFile | None:
    """Return a file by its parts; None where it is not as ranklake writes them, or no sound Parquet."""
    view = memoryview(whole)
    try:
        return _taken_apart(view)
    except (ThriftError, _OtherFileError, UnicodeDecodeError):
        return None


def shapes_of(whole: "pa.Buffer") -> Mapping[str, Sequence[Fields]]:
    """Return `ChunkedFile.shapes` of a file that was just written, if need be without rows."""
    return _schema(_footer(memoryview(whole))[0])[0]


def join(sink: "pa.NativeFile", parts: Sequence[Part], like: ChunkedFile) -> None:
    """Write a file of the chunks of others, which have the same row groups.

    Parameters
    ----------
    like
        The file whose version and writer the new one names: of several the oldest, since readers know by its name what
        not to believe.
    """
    sink.write(_MAGIC)
    at = len(_MAGIC)
    placed: list[list[_Placed]] = []
    for group in range(len(like.groups)):
        row = [_Placed(part, part.file.groups[group][1][part.source]) for part in parts]
        for one in row:
            at = one.put_pages(sink, at)
        placed.append(row)
    every = [one for row in placed for one in row]
    for put in (_Placed.put_bloom, _Placed.put_column_index, _Placed.put_offset_index):
        for one in every:
            at = put(one, sink, at)
    groups = [_group(rows, row) for rows, row in zip(like.group_rows, placed, strict=True)]
    footer: Fields = {
        FileFields.VERSION: like.version,
        FileFields.SCHEMA: _list([_root(parts), *(one for part in parts for one in _named(part))]),
        FileFields.ROWS: Field(I64, sum(like.group_rows)),
        FileFields.ROW_GROUPS: _list(groups),
        FileFields.CREATED_BY: like.writer,
        FileFields.COLUMN_ORDERS: _list([part.file.orders[part.source] for part in parts]),
    }
    text = dumps(footer)
    sink.write(text + len(text).to_bytes(4, "little") + _MAGIC)


class _Placed:
    """A chunk on its way into another file: what its footer will say."""

    def __init__(self, part: Part, chunk: Chunk) -> None:
        self._chunk, self._whole = chunk, part.file.whole
        self._moved = 0
        self.begin = 0
        self.meta: Fields = {**chunk.meta, MetaFields.PATH: _path(chunk.meta, part.name)}
        self.facts: Fields = {ChunkFields.FILE_OFFSET: Field(I64, 0), ChunkFields.META: Field(STRUCT, self.meta)}

    def put_pages(self, sink: "pa.NativeFile", at: int) -> int:
        """Write its pages at a place; return the place after them."""
        begin, end = self._chunk.pages
        self.begin, self._moved = at, at - begin
        for number in (MetaFields.DATA_PAGE, MetaFields.DICTIONARY_PAGE):
            if number in self.meta:
                self.meta[number] = Field(I64, _int(self.meta, number) + self._moved)
        sink.write(self._whole[begin:end])
        return at + end - begin

    def put_bloom(self, sink: "pa.NativeFile", at: int) -> int:
        """Write its bloom filter, if it has one."""
        if self._chunk.bloom is None:
            return at
        self.meta[MetaFields.BLOOM_FILTER] = Field(I64, at)
        begin, end = self._chunk.bloom
        sink.write(self._whole[begin:end])
        return at + end - begin

    def put_column_index(self, sink: "pa.NativeFile", at: int) -> int:
        """Write the extremes of its pages, if it has them; no place stands in these."""
        if self._chunk.column_index is None:
            return at
        return self._put_index(sink, at, bytes(self._whole[slice(*self._chunk.column_index)]), ChunkFields.COLUMN_INDEX)

    def put_offset_index(self, sink: "pa.NativeFile", at: int) -> int:
        """Write the places of its pages."""
        fields, _ = loads(bytes(self._whole[slice(*self._chunk.offset_index)]))
        for page in _structs(fields, IndexFields.PAGES):
            page[PageFields.OFFSET] = Field(I64, _int(page, PageFields.OFFSET) + self._moved)
        return self._put_index(sink, at, dumps(fields), ChunkFields.OFFSET_INDEX)

    def _put_index(self, sink: "pa.NativeFile", at: int, text: bytes, number: int) -> int:
        self.facts |= {number: Field(I64, at), number + 1: Field(I32, len(text))}
        sink.write(text)
        return at + len(text)


def _group(rows: int, row: Sequence[_Placed]) -> Fields:
    sizes = [sum(_int(one.meta, number) for one in row) for number in (MetaFields.BYTES, MetaFields.COMPRESSED_BYTES)]
    return {
        GroupFields.COLUMNS: _list([one.facts for one in row]),
        GroupFields.TOTAL_BYTES: Field(I64, sizes[0]),
        GroupFields.ROWS: Field(I64, rows),
        GroupFields.FILE_OFFSET: Field(I64, row[0].begin),
        GroupFields.TOTAL_COMPRESSED_BYTES: Field(I64, sizes[1]),
    }


def _list(structs: list[Fields]) -> Field:
    return Field(LIST, Items(STRUCT, structs))


def _root(parts: Sequence[Part]) -> Fields:
    return {
        ElementFields.REPETITION: Field(I32, 0),
        ElementFields.NAME: Field(BINARY, b"schema"),
        ElementFields.CHILDREN: Field(I32, len(parts)),
    }


def _named(part: Part) -> Iterator[Fields]:
    top, *below = part.file.shapes[part.source]
    yield {**top, ElementFields.NAME: Field(BINARY, part.name.encode())}
    yield from below


def _path(meta: Fields, name: str) -> Field:
    _, *below = meta[MetaFields.PATH].value.values
    return Field(LIST, Items(BINARY, [name.encode(), *below]))


def _taken_apart(view: memoryview) -> ChunkedFile:
    footer, end = _footer(view)
    if not _of(FileFields, footer) or not _binary(footer, FileFields.CREATED_BY).startswith(_WRITER):
        raise _OtherFileError
    shapes, leaves = _schema(footer)
    orders = _structs(footer, FileFields.COLUMN_ORDERS)
    groups = []
    ranges: list[Range] = [(0, len(_MAGIC)), (end, len(view))]
    for group in _structs(footer, FileFields.ROW_GROUPS):
        chunks = _structs(group, GroupFields.COLUMNS)
        if not _of(GroupFields, group) or len(chunks) != len(leaves):
            raise _OtherFileError
        found = dict(zip(leaves, map(_chunk, chunks), strict=True))
        if any(_top(chunk) != name for name, chunk in found.items()):
            raise _OtherFileError
        groups.append((_int(group, GroupFields.ROWS), found))
        for one in found.values():
            ranges += [some for some in (one.pages, one.bloom, one.column_index, one.offset_index) if some is not None]
            _hold_places(view, one)
    ranges.sort()
    # Each byte is of one thing: what names the same bytes again and again would make a small file a large one.
    if any(begin >= stop for begin, stop in ranges) or any(one[1] > other[0] for one, other in pairwise(ranges)):
        raise _OtherFileError
    if not groups or len(orders) != len(leaves) or sum(rows for rows, _ in groups) != _int(footer, FileFields.ROWS):
        raise _OtherFileError
    return ChunkedFile(
        view,
        _told(footer, FileFields.VERSION, I32),
        footer[FileFields.CREATED_BY],
        shapes,
        dict(zip(leaves, orders, strict=True)),
        groups,
    )


def _footer(view: memoryview) -> tuple[Fields, int]:
    """Return a file's footer, and where it begins."""
    if len(view) < _TAIL + len(_MAGIC) or {bytes(view[: len(_MAGIC)]), bytes(view[-len(_MAGIC) :])} != {_MAGIC}:
        raise _OtherFileError
    begin = len(view) - _TAIL - int.from_bytes(view[-_TAIL : -len(_MAGIC)], "little")
    if begin < len(_MAGIC):
        raise _OtherFileError
    return loads(bytes(view[begin:-_TAIL]))[0], begin


def _schema(footer: Fields) -> tuple[dict[str, Sequence[Fields]], list[str]]:
    """Return the elements of each column, and the columns in the order of their chunks, of which each has one."""
    elements = _structs(footer, FileFields.SCHEMA)
    if not elements or _int(elements[0], ElementFields.CHILDREN) < 1:
        raise _OtherFileError
    shapes: dict[str, Sequence[Fields]] = {}
    at = 1
    while at < len(elements):
        begin, at = at, _after(elements, at)
        name = _binary(elements[begin], ElementFields.NAME).decode()
        if name in shapes:
            raise _OtherFileError
        top = {number: told for number, told in elements[begin].items() if number != ElementFields.NAME}
        shapes[name] = [top, *elements[begin + 1 : at]]
    if len(shapes) != _int(elements[0], ElementFields.CHILDREN):
        raise _OtherFileError
    return shapes, list(shapes)


def _after(elements: Sequence[Fields], at: int) -> int:
    """Return the place after a column's elements, each of which has no more than one below it."""
    while at < len(elements) and ElementFields.CHILDREN in elements[at]:
        if _int(elements[at], ElementFields.CHILDREN) != 1:
            raise _OtherFileError
        at += 1
    return at + 1


def _chunk(facts: Fields) -> Chunk:
    meta = _struct(facts, ChunkFields.META)
    if not _of(ChunkFields, facts) or not _of(MetaFields, meta):
        raise _OtherFileError
    has_words = MetaFields.DICTIONARY_PAGE in meta
    first = _int(meta, MetaFields.DICTIONARY_PAGE if has_words else MetaFields.DATA_PAGE)
    size, _ = _int(meta, MetaFields.COMPRESSED_BYTES), _int(meta, MetaFields.BYTES)
    told = _struct(meta, MetaFields.STATISTICS) if MetaFields.STATISTICS in meta else {}
    return Chunk(
        meta=meta,
        pages=(first, first + size),
        bloom=_range(meta, MetaFields.BLOOM_FILTER) if MetaFields.BLOOM_FILTER in meta else None,
        column_index=_range(facts, ChunkFields.COLUMN_INDEX) if ChunkFields.COLUMN_INDEX in facts else None,
        offset_index=_range(facts, ChunkFields.OFFSET_INDEX),
        has_statistics=MetaFields.STATISTICS in meta,
        nulls=_int(told, StatisticsFields.NULLS) if StatisticsFields.NULLS in told else None,
    )


def _range(fields: Fields, number: int) -> Range:
    """Return what a place and the length in the field after it say."""
    begin = _int(fields, number)
    return begin, begin + _int(fields, number + 1)


def _top(chunk: Chunk) -> str:
    path = chunk.meta.get(MetaFields.PATH)
    if path is None or path.kind != LIST or path.value.kind != BINARY or not path.value.values:
        raise _OtherFileError
    return str(path.value.values[0], "utf-8")


def _hold_places(view: memoryview, chunk: Chunk) -> None:
    """Raise where a place that will be moved is none within the chunk."""
    fields, _ = loads(bytes(view[slice(*chunk.offset_index)]))
    begin, end = chunk.pages
    places = [_int(page, PageFields.OFFSET) for page in _structs(fields, IndexFields.PAGES)]
    if not all(begin <= place < end for place in (*places, _int(chunk.meta, MetaFields.DATA_PAGE))):
        raise _OtherFileError


def _of(known: type[IntEnum], fields: Fields) -> bool:
    """Say whether a struct has no field but those that are known, and perhaps not all of them."""
    return fields.keys() <= set(known)


def _told(fields: Fields, number: int, *kinds: int) -> Field:
    found = fields.get(number)
    if found is None or found.kind not in kinds:
        raise _OtherFileError
    return found


def _int(fields: Fields, number: int) -> int:
    value: int = _told(fields, number, I32, I64).value
    if value < 0:
        raise _OtherFileError
    return value


def _binary(fields: Fields, number: int) -> bytes:
    value: bytes = _told(fields, number, BINARY).value
    return value


def _struct(fields: Fields, number: int) -> Fields:
    value: Fields = _told(fields, number, STRUCT).value
    return value


def _structs(fields: Fields, number: int) -> list[Fields]:
    items: Items = _told(fields, number, LIST).value
    if items.kind != STRUCT:
        raise _OtherFileError
    return list(items.values)
