"""Numbers of the fields of Parquet's structs, as ``parquet.thrift`` has them: those that are looked at here."""

from enum import IntEnum


class FileFields(IntEnum):
    """Of ``FileMetaData``."""

    VERSION = 1
    SCHEMA = 2
    ROWS = 3
    ROW_GROUPS = 4
    CREATED_BY = 6
    COLUMN_ORDERS = 7


class ElementFields(IntEnum):
    """Of ``SchemaElement``."""

    REPETITION = 3
    NAME = 4
    CHILDREN = 5


class GroupFields(IntEnum):
    """Of ``RowGroup``."""

    COLUMNS = 1
    TOTAL_BYTES = 2
    ROWS = 3
    FILE_OFFSET = 5
    TOTAL_COMPRESSED_BYTES = 6
    ORDINAL = 7


class ChunkFields(IntEnum):
    """Of ``ColumnChunk``. The length of an index is in the field after its place."""

    FILE_OFFSET = 2
    META = 3
    OFFSET_INDEX = 4
    OFFSET_INDEX_BYTES = 5
    COLUMN_INDEX = 6
    COLUMN_INDEX_BYTES = 7


class MetaFields(IntEnum):
    """Of ``ColumnMetaData``. The length of the bloom filter is in the field after its place."""

    TYPE = 1
    ENCODINGS = 2
    PATH = 3
    CODEC = 4
    VALUES = 5
    BYTES = 6
    COMPRESSED_BYTES = 7
    DATA_PAGE = 9
    DICTIONARY_PAGE = 11
    STATISTICS = 12
    ENCODING_STATISTICS = 13
    BLOOM_FILTER = 14
    BLOOM_FILTER_BYTES = 15
    SIZE_STATISTICS = 16


class StatisticsFields(IntEnum):
    """Of ``Statistics``."""

    NULLS = 3


class IndexFields(IntEnum):
    """Of ``OffsetIndex``."""

    PAGES = 1


class PageFields(IntEnum):
    """Of ``PageLocation``."""

    OFFSET = 1
