"""Own columns: pack the numbers that an overlay adds to ``steps`` into slots, and convert rows of its own tables."""

import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

from ranklake.capture.common.gaps import BAD_ARGUMENTS, BAD_VALUE, NO_CONTRACT, RefusedError
from ranklake.capture.common.layouts import ABSENT, OWN_STEPS, OWN_WIDTH
from ranklake.capture.common.monotonic import now
from ranklake.capture.common.values import (
    BadValueError,
    integer,
    json_text,
    number,
    redacted_text,
    repr_of,
    text,
    to_json,
)
from ranklake.capture.lanes.sink import Sink
from ranklake.capture.steps.progress import Progress
from ranklake.errors import did_you_mean
from ranklake.lake.contracts.model import Column, Contract
from ranklake.redaction.redact import redact

_FLOAT: Final = struct.Struct("<d")
_PRESENT: Final = struct.Struct("<I")
_AT: Final = OWN_STEPS.offset("own")
_PRESENT_AT: Final = OWN_STEPS.offset("own_present")
_EXACT: Final = 1 << 53
"""Integers up to this value are exact as doubles."""

pack: Final = OWN_STEPS.packer.pack_into


class OwnNumbers:
    """Numbers that an overlay adds to a step's row, in the order given in meta.frames.

    Parameters
    ----------
    columns
        Whether each column has integers, by name.
    """

    def __init__(self, columns: Mapping[str, bool]) -> None:
        self._is_integer = dict(columns)
        self._indices = {name: index for index, name in enumerate(columns)}

    def __contains__(self, name: object) -> bool:
        return name in self._indices

    @property
    def names(self) -> dict[str, str]:
        """Names under which `run.log` accepts the columns: their own names."""
        return {name: name for name in self._indices}

    def value(self, name: str, value: object) -> float:
        """Return the float to write for a value. Raises the errors of `number`."""
        if not self._is_integer[name]:
            return number(value)
        whole = integer(value)
        if abs(whole) > _EXACT:
            raise BadValueError("an integer above 53 bits")
        return float(whole)

    def fields(self, floats: Mapping[str, float]) -> list[float]:
        """Return the last fields of a slot, without its mark: all numbers, and the bits of those that are set."""
        values = [0.0] * OWN_WIDTH
        present = 0
        for name, index in self._indices.items():
            value = floats.get(name)
            if value is not None:
                values[index] = value
                present |= 1 << index
        return [*values, present]

    def fill(self, view: memoryview, offset: int, name: str, value: float) -> bool:
        """Set a number in a written row; False if it has one already. Raises `ValueError` if the file was retired."""
        index = self._indices[name]
        at = offset + _PRESENT_AT
        present = _PRESENT.unpack_from(view, at)[0]
        if present & 1 << index:
            return False
        _FLOAT.pack_into(view, offset + _AT + index * _FLOAT.size, value)
        _PRESENT.pack_into(view, at, present | 1 << index)
        return True


_LONGEST: Final = 1 << 17
_INT32: Final = range(-(1 << 31), 1 << 31)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ENVELOPE: Final = 20
"""Columns with lower ids are the envelope's, which recording fills in."""
_GAPS_TABLE: Final = "events"
"""Table for gaps of rows of undefined tables, because ingest needs a table with a contract."""


class OwnTables:
    """Writes rows of the tables that an overlay defines.

    Parameters
    ----------
    contracts
        Contracts of the tables, by name.
    renamed
        By table: former column names, each with the current name.
    """

    def __init__(
        self,
        sink: Sink,
        progress: Progress,
        contracts: Mapping[str, Contract],
        renamed: Mapping[str, Mapping[str, str]],
    ) -> None:
        self._sink, self._progress, self._renamed = sink, progress, renamed
        self._columns = {name: _own_columns(contract) for name, contract in contracts.items()}
        self._required = {
            name: [column.name for column in columns.values() if column.required]
            for name, columns in self._columns.items()
        }

    def add(
        self,
        table: object,
        mapping: Mapping[Any, object] | None,
        excess: tuple[object, ...],
        values: Mapping[str, object],
    ) -> None:
        """Record one row; see `ranklake.capture.Run.record`."""
        time_ns, sink = now(), self._sink
        name = table if type(table) is str else text(table, 80)  # a subclass may define hash and comparison
        columns = self._columns.get(name)
        if sink.is_idle:
            sink.miss(_GAPS_TABLE if columns is None else name)
            return
        if columns is None:
            hint = did_you_mean(text(name, 80), self._columns)
            hint = hint or "add its contract to the folder set by contracts_overlay"
            sink.refuse(_GAPS_TABLE, NO_CONTRACT, f"run.record({text(name, 80)!r}): {hint}")
            return
        with sink.recording(name):
            if excess:
                raise RefusedError(BAD_ARGUMENTS, repr_of(excess))
            all_values = values if mapping is None else {**mapping, **values}
            sink.record(name, self._row(name, columns, all_values), time_ns)

    def _row(self, table: str, columns: Mapping[str, Column], values: Mapping[Any, object]) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for name, value in values.items():
            column = columns.get(name) if isinstance(name, str) else None
            if column is None:
                new_name = self._renamed.get(table, {}).get(text(name, 80))
                hint = f"its name is {new_name!r} now" if new_name else did_you_mean(text(name, 80), columns)
                topic = f"{table}.{text(name, 80)}"
                self._sink.misuse(
                    topic, f"table {table!r} has no column {text(name, 80)!r}; {hint or 'it is left out'}"
                )
            elif value is not None:
                try:
                    row[column.name] = _CONVERTERS[column.type](column, value)
                except BadValueError as error:
                    raise RefusedError(BAD_VALUE, f"{table}.{column.name}={error}") from None
        if "step" in columns and row.get("step") is None and columns["step"].type == "int64":
            row["step"] = None if self._progress.at == ABSENT else self._progress.at
        for name in self._required[table]:
            if row.get(name) is None:
                raise RefusedError(BAD_VALUE, f"{table}.{name} is missing")
        return row


def _own_columns(contract: Contract) -> dict[str, Column]:
    return {column.name: column for column in contract.columns if column.id >= _ENVELOPE}


def _text(column: Column, value: object) -> str | None:
    if column.format == "json":
        return json_text(redact(to_json(value)))
    return redacted_text(value, _LONGEST)


def _bool(_: Column, value: object) -> bool:
    converted = number(value)
    if converted not in {0.0, 1.0}:
        raise BadValueError(repr_of(value))
    return bool(converted)


def _int32(_: Column, value: object) -> int:
    whole = integer(value)
    if whole not in _INT32:
        raise BadValueError("an integer beyond 32 bits")
    return whole


def _float(_: Column, value: object) -> float:
    converted = number(value)
    if converted - converted != 0.0:  # NaN or infinite: unknown values must be omitted
        raise BadValueError(repr_of(converted))
    return converted


def _decimal(_: Column, value: object) -> str:
    if isinstance(value, Decimal | int) and not isinstance(value, bool):
        return str(value)
    return repr(_float(_, value))


def _timestamp(_: Column, value: object) -> int:
    """Return microseconds since 1970; a number is seconds since then."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise BadValueError("a time without a time zone")
        return (value - _EPOCH) // (datetime.resolution)
    return round(_float(_, value) * 1e6)


def _date(_: Column, value: object) -> int:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise BadValueError(type(value).__name__)
    return (value - _EPOCH.date()).days


def _integers(_: Column, value: Any) -> list[int]:  # noqa: ANN401 - any iterable
    try:
        return [integer(item) for item in value]
    except TypeError:
        raise BadValueError(type(value).__name__) from None


_CONVERTERS: Final[dict[str, Callable[[Column, Any], Any]]] = {
    "string": _text,
    "bool": _bool,
    "int32": _int32,
    "int64": lambda _, value: integer(value),
    "float32": _float,
    "float64": _float,
    "decimal": _decimal,
    "timestamp": _timestamp,
    "date": _date,
    "int64_list": _integers,
}
"""Converters of values, by the column's type."""
