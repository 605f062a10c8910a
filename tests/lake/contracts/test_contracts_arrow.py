"""Arrow schemas from contracts, tables made to fit them, and the Delta tables that follow."""

import datetime as dt
import json

import deltalake
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranklake.lake.contracts import ContractMismatchError, contract, load_contracts
from ranklake.lake.contracts.arrow import ARROW_TYPES, arrow_schema, conform, statistics_columns, table_configuration
from ranklake.lake.contracts.model import CLASSES, TYPES

TABLES = sorted(load_contracts())
NOW = dt.datetime(2026, 3, 4, 5, 6, 7, 8, tzinfo=dt.UTC)

VALUES = {
    "string": st.text(max_size=5),
    "bool": st.booleans(),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float32": st.floats(width=32),
    "float64": st.floats(),
    "decimal": st.decimals(-(10**20), 10**20, allow_nan=False, places=9),
    "timestamp": st.datetimes(dt.datetime(1970, 1, 2), dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC)),  # noqa: DTZ001
    "date": st.dates(),
    "int64_list": st.lists(st.integers(0, 2**62), max_size=3),
}

# Other types that hold the same values, as a careless writer may hand them over.
CARELESS = {
    "string": [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
    "int32": [pa.int64()],
    "float32": [pa.float64()],
    "timestamp": [pa.timestamp("us", tz="Europe/Berlin"), pa.timestamp("ns", tz="UTC")],
    "date": [pa.date64()],
    "int64_list": [pa.large_list(pa.int64())],
}


@st.composite
def tables(draw):
    """Draw a contract, a table of it, and the same table as a careless writer would hand it over."""
    one = contract(draw(st.sampled_from(TABLES)))
    schema = arrow_schema(one)
    rows = draw(st.integers(0, 4))
    columns = {}
    for column in one.columns:
        values = VALUES[column.type] if column.required else st.none() | VALUES[column.type]
        drawn = draw(st.lists(values, min_size=rows, max_size=rows))
        columns[column.name] = pa.array(drawn, ARROW_TYPES[column.type])
    exact = pa.table(list(columns.values()), schema=schema)
    names = draw(st.permutations(one.names))
    careless = {}
    for name in names:
        column = one.column(name)
        if not column.required and exact[name].null_count == rows and draw(st.booleans()):
            continue
        kinds = [None, *CARELESS.get(column.type, [])]
        kind = draw(st.sampled_from(kinds))
        careless[name] = exact[name] if kind is None else exact[name].cast(kind)
    return one, exact, pa.table(careless)


@pytest.mark.parametrize("name", TABLES)
def test_schemas_carry_what_the_contract_says(name):
    """Every column is there in order, with its type, nullability, id, unit, class, doc and mask."""
    one = contract(name)
    schema = arrow_schema(one)
    assert schema.metadata == {b"table": name.encode(), b"version": str(one.version).encode()}
    assert tuple(schema.names) == one.names
    for column, field in zip(one.columns, schema, strict=True):
        assert field.type == ARROW_TYPES[column.type]
        assert field.nullable is not column.required
        facts = {key.decode(): value.decode() for key, value in field.metadata.items()}
        assert facts["id"] == str(column.id)
        assert facts["class"] in CLASSES
        assert facts["doc"] == column.doc
        assert facts.get("unit") == column.unit
        assert facts.get("mask") == column.mask
    assert arrow_schema(one, segment=True).names == [column for column in one.names if column != "date"]


def test_every_type_has_an_arrow_type():
    """No type of the model is forgotten in the derivation."""
    assert set(ARROW_TYPES) == set(TYPES) == set(VALUES)


@pytest.mark.slow
@settings(deadline=None)
@given(tables())
def test_conform_restores_order_types_and_missing_columns(drawn):
    """Whatever the order, the equivalent types and the all-NULL columns left out, conform gives the same table."""
    one, exact, careless = drawn
    fitted = conform(careless, one)
    assert fitted.schema.equals(arrow_schema(one), check_metadata=True)
    assert same(fitted, exact)
    assert same(conform(fitted, one), fitted)


def same(left, right):
    """Compare tables, with NaN equal to NaN."""
    return repr(left.to_pylist()) == repr(right.to_pylist())


def step(**changes):
    """Return one row of steps as a table; a change to None drops the column."""
    facts = {
        "run": "r", "attempt": 0, "rank": 0, "incarnation": 1, "segment": 0, "slot": 0, "ts": NOW, "date": NOW.date(),
        "step": 1, "step_time_s": 0.5,
    } | changes  # fmt: skip
    return pa.table({key: pa.array([value]) for key, value in facts.items() if value is not None})


MISFITS = {
    "a fraction for an integer": (step(step=1.5), "'step' is double and does not fit int64"),
    "too large for int32": (step(rank=2**40), "'rank' is int64 and does not fit int32"),
    "too large for float32": (step(loss=1e300), "'loss' is double and does not fit float"),
    "text for a number": (step(step="7"), "'step' is string and does not fit int64"),
    "a number for text": (step(run=7), "'run' is int64 and does not fit string"),
    "a number for a time": (step(ts=7), "'ts' is int64 and does not fit timestamp"),
    "a time without a zone": (step(ts=NOW.replace(tzinfo=None)), "'ts' is timestamp[us] and does not fit"),
    "truth for a number": (step(tokens=True), "'tokens' is bool and does not fit int64"),
    "a required column left out": (step(step_time_s=None), "required column 'step_time_s' is missing"),
    "an unknown column": (step(stepp=1), "unknown column 'stepp'"),
    "a column twice": (step().append_column("step", pa.array([1])), "column 'step' appears twice"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_what_cannot_be_fitted_without_loss_is_refused(case):
    """Nothing is rounded, parsed, cut or dropped to make it fit; the error names the table and the column."""
    table, what = MISFITS[case]
    with pytest.raises(ContractMismatchError) as refused:
        conform(table, contract("steps"))
    assert what in str(refused.value)
    assert refused.value.table == "steps"
    assert len(refused.value.problems) == 1


def test_all_that_is_wrong_is_told_at_once():
    """The error lists every problem, so that a writer is mended in one go."""
    with pytest.raises(ContractMismatchError) as refused:
        conform(step(step=1.5, extra=1, run=None), contract("steps"))
    assert len(refused.value.problems) == 3


def test_float64_is_rounded_to_float32_and_infinity_stays():
    """Rounding is what float32 means; infinities and NaN pass, since judging values is the edge's work."""
    fitted = conform(step(loss=0.1, lr=float("inf")), contract("steps"))
    assert fitted["loss"].to_pylist() == [pytest.approx(0.1, abs=1e-8)]
    assert fitted["lr"].to_pylist() == [float("inf")]


def test_a_null_in_a_required_column_is_left_to_the_edge():
    """Such a row must reach quarantine with its reason, so conform does not refuse the table for it."""
    table = pa.table({"run": pa.nulls(1), **{name: step()[name] for name in step().column_names if name != "run"}})
    assert conform(table, contract("steps"))["run"].null_count == 1


@pytest.mark.parametrize("name", TABLES)
def test_statistics_are_kept_of_operational_columns_alone(name):
    """No personal, pseudonymous or secret column, no JSON and no partition column may leave its values in the log."""
    one = contract(name)
    kept = set(statistics_columns(one))
    for column in one.columns:
        if column.class_ != "operational" or column.format == "json" or column.name in one.partition:
            assert column.name not in kept
    assert table_configuration(one)["delta.dataSkippingStatsColumns"].split(",") == list(statistics_columns(one))
    assert not any("columnMapping" in key for key in table_configuration(one))


@pytest.mark.parametrize("name", TABLES)
def test_delta_takes_the_schema_and_properties_of_every_contract(tmp_path, name):
    """A real Delta table is made from each contract, at a protocol that all readers know, and gives its schema back."""
    one = contract(name)
    table = deltalake.DeltaTable.create(
        tmp_path / name,
        schema=deltalake.Schema.from_arrow(arrow_schema(one)),
        partition_by=list(one.partition),
        configuration=table_configuration(one),
    )
    protocol = table.protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    fields = {field.name: field for field in table.schema().fields}
    assert list(fields) == list(one.names)
    for column in one.columns:
        assert fields[column.name].nullable is not column.required
        assert fields[column.name].metadata["id"] == str(column.id)


def test_no_personal_value_stands_in_the_delta_log(tmp_path):
    """After a write the log holds minima of operational columns, and no byte of a personal or pseudonymous value."""
    one = contract("events")
    message = "zanzibar-the-person"
    table = conform(
        pa.table(
            {
                **{name: step()[name] for name in one.names if name in step().column_names and name != "step"},
                "event": ["failure"],
                "message": [message],
            }
        ),
        one,
    )
    deltalake.write_deltalake(tmp_path, table, partition_by=["date"], configuration=table_configuration(one))
    log = "".join(path.read_text() for path in (tmp_path / "_delta_log").glob("*.json"))
    statistics = json.loads(next(json.loads(line)["add"]["stats"] for line in log.splitlines() if '"add"' in line))
    assert statistics["minValues"]["event"] == "failure"
    assert message not in log
