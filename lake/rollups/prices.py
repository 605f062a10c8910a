"""Reads the operator's prices of devices from a CSV file: price per device-hour, by device, pool and dates.

There are no built-in prices. A device that is not in the file has no price, and its cost is NULL.
"""

import csv
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Final

import pyarrow as pa

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.rollups.peaks import name_key
from ranklake.operator_files import raise_all

COLUMNS: Final = ("device_name", "pool", "price_per_device_hour", "currency", "valid_from", "valid_to")
SCHEMA: Final = pa.schema(
    {
        "device_key": pa.string(),
        "pool": pa.string(),
        "price": pa.decimal128(18, 9),
        "currency": pa.string(),
        "valid_from": pa.date32(),
        "valid_to": pa.date32(),
        "source": pa.string(),
    }
)
_CODE_LENGTH: Final = 3
_SCALE: Final = 9
_MOST: Final = Decimal(10**6)  # with higher prices, the cost of a large cluster's day would exceed 38 digits


class PriceError(RanklakeError):
    """An invalid price table: no file, an invalid line, or two lines that contradict each other."""


@dataclass(frozen=True, slots=True)
class Price:
    """One line of a price table.

    Attributes
    ----------
    device_key
        `ranklake.lake.rollups.peaks.name_key` of the device's name; None for any device.
    pool
        Partition, queue or virtual cluster; None for any.
    price
        Price of one device for one hour, in `currency` (ISO 4217).
    valid_from, valid_to
        First UTC date with this price, and first UTC date without it; None for no end.
    source
        File name, digest and line.
    """

    device_key: str | None
    pool: str | None
    price: Decimal
    currency: str
    valid_from: date
    valid_to: date | None
    source: str


def price_table(path: str) -> pa.Table:
    """Read a price table for SQL, with the schema `SCHEMA`; empty for an empty path. Raises `PriceError`."""
    return pa.Table.from_pylist([_row(price) for price in read_prices(path)] if path else [], schema=SCHEMA)


def read_prices(path: str) -> tuple[Price, ...]:
    """Read a price table: a CSV file with the columns `COLUMNS`, in any order, and optionally ``note``.

    Raises one `PriceError` with all errors: invalid lines, and two prices for one device and pool on the same date.
    """
    try:
        raw = Path(path).read_bytes()
        text = raw.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PriceError(f"no price table: {error}", where=path, hint="name a CSV file in UTF-8") from None
    reader = csv.DictReader(text.splitlines())
    _check_header(path, reader.fieldnames or ())
    name = f"{Path(path).name} (sha256 {hashlib.sha256(raw).hexdigest()[:12]})"
    prices: list[Price] = []
    errors: list[RanklakeError] = []
    for row in reader:
        try:
            prices.append(_price(row, f"{path}:{reader.line_num}", f"{name} line {reader.line_num}"))
        except PriceError as error:
            errors.append(error)
    for where, start, other in _contradictions(prices):
        overlap = f"two prices hold at once, of {start} and of {other}"
        errors.append(PriceError(overlap, where=f"{path}: {where}", hint="end one with valid_to"))
    raise_all(errors)
    return tuple(prices)


def _check_header(path: str, names: "Sequence[str]") -> None:
    for name in names:
        if name not in {*COLUMNS, "note"}:
            raise PriceError(f"unknown column {name!r}", where=f"{path}:1", hint=did_you_mean(name, COLUMNS))
    lacking = [name for name in COLUMNS if name not in names]
    if lacking:
        hint = f"the first line is {','.join(COLUMNS)}"
        raise PriceError(f"columns are missing: {', '.join(lacking)}", where=f"{path}:1", hint=hint)


def _price(row: dict[str, str], where: str, source: str) -> Price:
    cells = {name: (row.get(name) or "").strip() for name in COLUMNS}
    try:
        price = Decimal(cells["price_per_device_hour"])
    except InvalidOperation:
        price = Decimal("NaN")
    exponent = price.as_tuple().exponent
    if not price.is_finite() or not 0 <= price < _MOST or not isinstance(exponent, int) or exponent < -_SCALE:
        message = "price_per_device_hour is not a price"
        raise PriceError(
            message, where=where, hint="write a number from 0 to below a million, with at most nine decimals"
        )
    currency = cells["currency"]
    if len(currency) != _CODE_LENGTH or not currency.isascii() or not currency.isalpha() or not currency.isupper():
        raise PriceError(
            "currency is not an ISO 4217 code", where=where, hint="write three capital letters, such as EUR"
        )
    begin, end = (_date(cells[name], name, where) for name in ("valid_from", "valid_to"))
    if begin is None:
        raise PriceError("valid_from is missing", where=where, hint="write the first UTC date that the price holds on")
    if end is not None and end <= begin:
        raise PriceError("valid_to is not after valid_from", where=where, hint="valid_to is the first date without it")
    device = name_key(cells["device_name"]) or None
    return Price(device, cells["pool"] or None, price, currency, begin, end, source)


def _date(text: str, name: str, where: str) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise PriceError(f"{name} is not a date", where=where, hint="write YYYY-MM-DD") from None


def _contradictions(prices: list[Price]) -> Iterator[tuple[str, str, str]]:
    ordered = sorted(prices, key=lambda price: (price.device_key or "", price.pool or "", price.valid_from))
    for price, following in itertools.pairwise(ordered):
        same = (price.device_key, price.pool) == (following.device_key, following.pool)
        if same and (price.valid_to is None or price.valid_to > following.valid_from):
            lines = sorted((price.source.rpartition(" ")[2], following.source.rpartition(" ")[2]), key=int)
            yield " and ".join(lines), str(price.valid_from), str(following.valid_from)


def _row(price: Price) -> dict[str, object]:
    return {name: getattr(price, name) for name in SCHEMA.names}
