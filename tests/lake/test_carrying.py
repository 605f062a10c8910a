"""A file that takes column chunks of another over is what encoding all columns would give, for every reader."""

import os
import random
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from pathlib import Path

import datafusion
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bringing import bring
from changed_contracts import convert, rename
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from segments import put_segment, step_rows

from ranklake.lake.contracts.arrow import ARROW_TYPES
from ranklake.lake.contracts.load import contract
from ranklake.lake.contracts.model import Column
from ranklake.lake.delta import parquet
from ranklake.lake.delta.carrying import carried, write_carried
from ranklake.lake.delta.chunks import Part, join, taken_apart
from ranklake.lake.delta.integrity import DamagedFileError
from ranklake.lake.delta.live_files import files
from ranklake.lake.delta.order import sort_names, sort_order
from ranklake.lake.delta.parquet import write_partition
from ranklake.lake.delta.parquet_fields import ChunkFields, FileFields, GroupFields
from ranklake.lake.delta.tables import delta_table
from ranklake.lake.delta.thrift import ThriftError, dumps, loads
from ranklake.lake.migrations import applying
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.storage.store import Lake

DAY = date(2026, 3, 1)
FLIPS = int(os.environ.get("RANKLAKE_FLIPS", "5"))
SORTABLE = {"string", "int32", "int64", "timestamp", "text that repeats"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a lake in which files are written, and none is committed."""
    return Lake.create(str(tmp_path_factory.mktemp("carrying") / "lake"))


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch):
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 40)


VALUES = {
    "text that repeats": lambda chance: chance.choice(["a", "bb", "c" * 70]),
    "string": lambda chance: "".join(chance.choices("xyzä", k=chance.randrange(12))),
    "bool": lambda chance: chance.random() < 0.5,
    **dict.fromkeys(["int32", "int64"], lambda chance: chance.choice([0, -1, chance.randrange(-(2**31), 2**31)])),
    **dict.fromkeys(["float32", "float64"], lambda chance: chance.choice([0.0, -0.0, float(chance.randrange(2**20))])),
    "NaN": lambda chance: chance.choice([float("nan"), 1.0]),
    "decimal": lambda chance: Decimal(chance.randrange(10**9)).scaleb(-9),
    "timestamp": lambda chance: datetime(2026, 3, 1, tzinfo=UTC) + timedelta(microseconds=chance.randrange(10**9)),
    "date": lambda chance: DAY + timedelta(days=chance.randrange(1000)),
    "int64_list": lambda chance: [chance.choice([None, chance.randrange(9)]) for _ in range(chance.randrange(4))],
}
"""How a value of a kind is drawn."""
KINDS = list(VALUES)
SLOW_MACHINES = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
FATES = ["stays", "stays", "renamed", "changed", "dropped", "hidden", "filled"]


def column_of(number, kind, chance):
    """Return a column of a contract."""
    type_ = {"text that repeats": "string", "NaN": "float64"}.get(kind, kind)
    name = chance.choice(["trace_id", "request_id", f"c{number}"]) if type_ == "string" else f"c{number}"
    class_ = chance.choice(["operational", "operational", "personal"])
    return Column(number, name, type_, class_, "-", required=chance.random() < 0.2)


def values_of(kind, column, count, chance):
    """Return values of a column; now and then NULLs alone, or text with its dictionary."""
    nulls = 0 if column.required else chance.choice([0, 0, 0.3, 1])
    plain = [None if chance.random() < nulls else VALUES[kind](chance) for _ in range(count)]
    array = pa.array(plain, ARROW_TYPES[column.type])
    return array.dictionary_encode() if column.type == "string" and chance.random() < 0.5 else array


@st.composite
def cases(draw):
    """Return rows of a contract, the contract that they are to have, and which columns are to stay."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=9))
    count = draw(st.integers(1, 130))
    found = {}
    for number, kind in enumerate(kinds, 1):
        column = column_of(number, kind, chance)
        found.setdefault(column.name, (column, kind))
    columns = [column for column, _ in found.values()]
    sort = [column.name for column, kind in found.values() if kind in SORTABLE and chance.random() < 0.4]
    base = contract("steps")
    old = replace(base, columns=tuple(columns), sort=tuple(sort), grain=(), checks=(), retired=())
    arrays = [values_of(kind, column, count, chance) for column, kind in found.values()]
    rows = pa.table(arrays, names=list(found))
    fates = {name: chance.choice(FATES) for name in found}
    new_columns, stays, changes = [], {}, {}
    for column, kind in found.values():
        name = column.name
        match fates[name]:
            case "stays":
                new_columns.append(column)
                stays[name] = name
            case "renamed":
                new_columns.append(replace(column, name=f"{name}_now"))
                stays[f"{name}_now"] = name
            case "changed":
                new_columns.append(column)
                changes[name] = values_of(kind, column, count, chance)
            case "filled":  # a default in place of NULL
                default = 7 if column.type in {"int32", "int64"} else None
                new_columns.append(replace(column, default=default))
                stays[name] = name
            case "hidden":  # other statistics than the file has
                other = "personal" if column.class_ == "operational" else "operational"
                new_columns.append(replace(column, class_=other, required=False))
                stays[name] = name
    new_columns.append(Column(98, "late", "int32", "operational", "-", default=7))
    chance.shuffle(new_columns)
    back = {old: new for new, old in stays.items()}
    new_sort = [back.get(name, name) for name in sort if fates[name] != "dropped"]
    new = replace(old, columns=tuple(new_columns), sort=tuple(new_sort))
    return old, new, rows, stays, changes


def stored(lake, made):
    """Return a data file's path."""
    return lake.path("tables", made.table, made.path)


def statistics_of(path):
    """Return what a footer says of each column of each row group."""
    footer = pq.read_metadata(path)
    found = {}
    for group in range(footer.num_row_groups):
        for place in range(footer.num_columns):
            one = footer.row_group(group).column(place)
            told = one.statistics
            facts = None if told is None else (told.has_min_max and (told.min, told.max), told.null_count)
            has_bloom = one.bloom_filter_offset is not None
            found[group, one.path_in_schema] = (facts, one.num_values, has_bloom, one.has_offset_index)
    return found


def as_read(path):
    """Return a file as each of four readers sees it, text plain."""
    session = datafusion.SessionContext()
    session.register_parquet("t", path)
    with duckdb.connect() as connection:
        ducks = connection.sql(f"SELECT * FROM '{path}'").to_arrow_table()
    return {
        "pyarrow": pq.ParquetFile(path, page_checksum_verification=True).read(),
        "DuckDB": ducks,
        "Polars": pl.read_parquet(path).to_arrow(),
        "DataFusion": session.sql("SELECT * FROM t").to_arrow_table(),
    }


def same(one, other):
    """Say whether two tables have the same values, NaN among them."""
    return one.schema == other.schema and all(
        repr(a.to_pylist()) == repr(b.to_pylist()) for a, b in zip(one.columns, other.columns, strict=True)
    )


@settings(max_examples=8, deadline=None, suppress_health_check=SLOW_MACHINES)
@given(cases())
def test_what_is_carried_over_is_what_encoding_gives(place, case):
    """Random columns of all types, row groups, NULLs and fates: the same for four readers, with the same statistics."""
    hold(place, case)


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=SLOW_MACHINES)
@given(cases())
def test_many_more_are_what_encoding_gives(place, case):
    """Likewise."""
    hold(place, case)


def hold(place, case):
    """Hold the file that takes chunks over against the one whose columns are all encoded."""
    old, new, rows, stays, changes = case
    before = stored(place, write_partition(place, old, rows, DAY, 1))
    kept = pq.read_table(before)
    moved = {now: kept[was] for now, was in stays.items() if was in kept.column_names}
    moved |= {name: pa.chunked_array([array]) for name, array in changes.items()}
    whole = pa.table(moved or {"gone": pa.nulls(rows.num_rows)})
    expected = write_partition(place, new, whole, DAY, 2)
    taken = carried(new, pa.py_buffer(Path(before).read_bytes()), stays)
    if taken is None:
        return
    left = [name for name in whole.column_names if name not in taken.names or name in taken.looked_at]
    made = write_carried(place, new, taken, whole.select(left or whole.column_names[:1]), DAY, 2)
    assert (made is not None) is (sort_order(parquet.body_of(new, whole), sort_names(new))[0] is None)
    if made is None:
        return
    assert (made.rows, made.stats) == (expected.rows, expected.stats)
    ours, theirs = stored(place, made), stored(place, expected)
    assert statistics_of(ours) == statistics_of(theirs)
    for (reader, found), meant in zip(as_read(ours).items(), as_read(theirs).values(), strict=True):
        assert same(found, meant), reader


@lru_cache
def encoded(count=90):
    """Return a Parquet file, as ranklake writes it, of columns of several types; and its rows."""
    chance = random.Random(7)
    columns = [column_of(number, kind, chance) for number, kind in enumerate(KINDS, 1)]
    columns = [replace(one, name=f"c{place}") for place, one in enumerate(columns)]
    columns.append(replace(columns[0], name="trace_id", type="string"))
    base = replace(contract("steps"), columns=tuple(columns), sort=(), grain=(), checks=(), retired=())
    kinds = [*KINDS, "string"]
    rows = pa.table(
        [values_of(kind, replace(one, required=True), count, chance) for kind, one in zip(kinds, columns, strict=True)],
        names=[one.name for one in columns],
    )
    sink = pa.BufferOutputStream()
    body = parquet.body_of(base, rows)
    parquet.put_groups(sink, base, body, parquet.groups_as_they_lie(body))
    return sink.getvalue()


def footer_of(whole):
    """Return where a file's footer begins and ends."""
    end = whole.size - 8
    return end - int.from_bytes(whole.to_pybytes()[end : end + 4], "little"), end


def put_together(whole, file):
    """Return a file of all columns of another, in the reverse order."""
    sink = pa.BufferOutputStream()
    join(sink, [Part(name, file, name) for name in reversed(file.shapes)], file)
    return sink.getvalue()


def test_a_footer_comes_back_as_it_was():
    """Reading a footer and writing it gives its very bytes."""
    whole = encoded()
    begin, end = footer_of(whole)
    text = whole.to_pybytes()[begin:end]
    fields, after = loads(text)
    assert (dumps(fields), after) == (text, len(text))


def test_the_sizes_of_row_groups_and_their_places_are_told():
    """What a footer says of a row group as a whole is right, and each page is where its index says."""
    whole = encoded()
    file = taken_apart(whole)
    made = put_together(whole, file)
    told, meant = (pq.read_metadata(pa.BufferReader(one)) for one in (made, whole))
    for group in range(meant.num_row_groups):
        assert told.row_group(group).total_byte_size == meant.row_group(group).total_byte_size
        assert told.row_group(group).num_rows == meant.row_group(group).num_rows
    again = taken_apart(made)
    for name in file.shapes:
        for one, other in zip(file.chunks(name), again.chunks(name), strict=True):
            assert file.whole[slice(*one.pages)] == again.whole[slice(*other.pages)]
            assert (one.bloom is None) is (other.bloom is None)
    assert any(one.bloom is not None for one in again.chunks("trace_id"))


@settings(max_examples=80, deadline=None, suppress_health_check=SLOW_MACHINES)
@given(st.data())
def test_a_forged_footer_is_left_to_others(data):
    """Whatever a footer says, it is taken for none of ours, or gives a file that is not larger; nothing is raised."""
    whole = encoded(60)
    begin, end = footer_of(whole)
    raw = bytearray(whole.to_pybytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(begin, end - 1))] = data.draw(st.integers(0, 255))
    file = taken_apart(pa.py_buffer(bytes(raw)))
    if file is not None:
        assert put_together(whole, file).size < 2 * whole.size


def test_chunks_that_name_the_same_bytes_are_left_to_others():
    """A footer all of whose chunks lie at one place would make a small file a large one."""
    whole = encoded()
    begin, end = footer_of(whole)
    raw = whole.to_pybytes()
    fields, _ = loads(raw[begin:end])
    for group in fields[FileFields.ROW_GROUPS].value.values:
        chunks = group[GroupFields.COLUMNS].value.values
        chunks[1] = {**chunks[1], ChunkFields.OFFSET_INDEX: chunks[0][ChunkFields.OFFSET_INDEX]}
    text = dumps(fields)
    assert taken_apart(pa.py_buffer(raw[:begin] + text + len(text).to_bytes(4, "little") + b"PAR1")) is None


@settings(max_examples=300, deadline=None, suppress_health_check=SLOW_MACHINES)
@given(st.binary(max_size=60))
def test_bytes_that_are_no_struct_are_refused(text):
    """Nothing but `ThriftError` comes of bytes that are none; what is a struct comes back with the same meaning."""
    try:
        fields, _ = loads(text)
    except ThriftError:
        return
    assert loads(dumps(fields))[0] == fields


def test_files_that_are_not_ours_are_left_to_others():
    """Other writers, keys in the footer, encryption, no page index, torn files: all columns are encoded then."""
    rows = pa.table({"a": [1, 2]})
    for options in ({"store_schema": True}, {"store_schema": False, "write_page_index": False}):
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, **options)
        assert taken_apart(sink.getvalue()) is None
    sound = encoded().to_pybytes()
    assert taken_apart(pa.py_buffer(sound)) is not None
    others = sound.replace(b"parquet-cpp-arrow version", b"parquet-cpp-other version")
    for raw in (
        others,
        sound[:-9],
        sound[:-4] + b"PARE",
        b"PAR1",
        b"",
        b"PAR1" + sound[4:-8] + b"\xff\xff\xff\x7fPAR1",
    ):
        assert taken_apart(pa.py_buffer(raw)) is None


def paths(lake):
    """Return the live files of ``steps``."""
    return files(delta_table(lake, "steps"))["path"].to_pylist()


def pages(lake, path):
    """Return the bytes of each column's pages."""
    whole = pa.py_buffer(Path(lake.path("tables", "steps", path)).read_bytes())
    file = taken_apart(whole)
    return {name: [bytes(file.whole[slice(*one.pages)]) for one in file.chunks(name)] for name in file.shapes}


def test_a_migration_carries_what_no_step_touches(lake, spool, changed):
    """The pages of untouched and of renamed columns are in the new file as they were, and after undo once more."""
    put_segment(spool, step_rows(100))
    bring(lake, spool)
    (before,) = paths(lake)
    old = pages(lake, before)

    def change(facts):
        rename(facts)
        convert(facts)

    changed.migrate("steps", change, factor=1000)
    applying.apply(lake, InProcess(), "Ada")
    (after,) = paths(lake)
    new = pages(lake, after)
    assert new.pop("tokens_seen") == old["tokens"]
    assert new.pop("step_time_ms") != old["step_time_s"]
    assert new.items() <= old.items()
    assert len(new) == len(old) - 2
    applying.undo(lake, InProcess(), "Ada", "steps")
    (back,) = paths(lake)
    assert pages(lake, back) == old


def test_a_bit_that_turned_is_not_carried_over(lake, spool, changed):
    """Wherever a bit turns in a file, a migration that would carry it over names the file and changes nothing."""
    put_segment(spool, step_rows(100))
    bring(lake, spool)
    (before,) = paths(lake)
    whole = Path(lake.path("tables", "steps", before))
    changed.migrate("steps", convert, factor=1000)
    chance = random.Random(17)
    sound = whole.read_bytes()
    for _ in range(FLIPS):
        raw = bytearray(sound)
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        whole.write_bytes(raw)
        with pytest.raises(DamagedFileError, match=whole.name):
            applying.apply(Lake.open(lake.uri), InProcess(), "Ada")
        assert paths(lake) == [before]
    whole.write_bytes(sound)
    applying.apply(Lake.open(lake.uri), InProcess(), "Ada")
    (after,) = paths(lake)
    assert pages(lake, after)["loss"] == pages(lake, before)["loss"]
