"""Reads cloud bills in FOCUS (FinOps Open Cost and Usage Specification, 1.0 to 1.3) and computes hourly device prices.

A bill has a row for each charge and period. The price of a device is the effective cost of its instances' usage,
including amortized commitments, divided by device-hours. The instance type is taken from ``SkuPriceDetails`` (1.2), or
else from the provider's descriptions of the SKU. ``instance_types.csv`` lists the devices of each type, and an
operator's file adds to it. Unused commitments, taxes, credits and purchases do not enter prices; their costs are summed
up separately.

Sources of ``instance_types.csv``: AWS Batch's list of GPU types and EC2's pages of accelerated computing, Azure's pages
of the ND and NC series, Google Cloud's page of GPU machine types.
"""

import csv
import gzip
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.rollups.prices import COLUMNS

_NEEDED: Final = ("BillingCurrency", "ChargeCategory", "ChargePeriodEnd", "ChargePeriodStart", "EffectiveCost")
_OPTIONAL: Final = (
    "ConsumedQuantity", "ConsumedUnit", "UsageQuantity", "UsageUnit", "PricingQuantity", "PricingUnit",
    "CommitmentDiscountStatus", "Tags", "SkuPriceDetails", "SkuMeter", "ChargeDescription", "x_InstanceType",
    "x_UsageType", "x_SkuMeterName", "x_SkuDescription", "x_SkuDetails",
)  # fmt: skip
_SKU_TEXTS: Final = ("x_InstanceType", "x_UsageType", "SkuMeter", "x_SkuMeterName", "x_SkuDescription", "x_SkuDetails",
                 "ChargeDescription")  # fmt: skip
_QUANTITIES: Final = (
    ("ConsumedQuantity", "ConsumedUnit"), ("UsageQuantity", "UsageUnit"), ("PricingQuantity", "PricingUnit"),
)  # fmt: skip
_UNITS_PER_HOUR: Final = {"hour": 1, "hours": 1, "hr": 1, "hrs": 1, "h": 1, "second": 3600, "seconds": 3600, "s": 3600,
                 "minute": 60, "minutes": 60}  # fmt: skip
_LONGEST_DAYS: Final = 366
_PRICE_STEP: Final = Decimal("1e-9")
_LARGEST: Final = Decimal("1e15")


class BillError(RanklakeError):
    """An invalid bill or list of instance types."""


@dataclass
class BilledPrices:
    """Prices of a bill, and the cost of its other rows.

    Attributes
    ----------
    lines
        Rows of a price table, with its columns and ``note``.
    charges, priced
        Number of rows of the bill, and of the rows that enter prices.
    left_out
        Effective cost of the other rows, by reason and currency.
    """

    lines: list[dict[str, str]] = field(default_factory=list)
    charges: int = 0
    priced: int = 0
    left_out: dict[tuple[str, str], Decimal] = field(default_factory=dict)


@dataclass
class _Sum:
    cost: Decimal = Decimal(0)
    hours: Decimal = Decimal(0)


def instance_types(path: str = "") -> dict[str, tuple[str, int]]:
    """Return name and number of devices by instance type.

    The types are from the package's list and an operator's file, which takes precedence. Raises `BillError`.
    """
    packaged = files("ranklake.lake.rollups").joinpath("instance_types.csv").read_text(encoding="utf-8")
    types = dict(_types(packaged, "instance_types.csv"))
    if path:
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise BillError(
                f"no list of instance types: {error}", where=path, hint="name a CSV file in UTF-8"
            ) from None
        types |= _types(text, path)
    return types


def billed_prices(paths: list[str], types: Mapping[str, tuple[str, int]], pool_tag: str = "") -> BilledPrices:
    """Compute hourly prices of devices from bills.

    Parameters
    ----------
    types
        Name and number of devices by instance type.
    pool_tag
        Key of the tag with the name of a device's pool; empty for no pools.

    Raises `BillError` for a file that is no FOCUS bill, and for a device with two currencies on one date.
    """
    result = BilledPrices()
    sums: dict[tuple[str, str, str, date], _Sum] = {}
    pattern = re.compile(
        "|".join(rf"(?<![\w.-]){re.escape(name)}(?![\w-])" for name in _longest_first(types)), re.IGNORECASE
    )
    devices_by_name = {_spelling(name): devices for name, devices in types.items()}
    for path in paths:
        for row in _rows(path):
            result.charges += 1
            cost, currency = _decimal(row["EffectiveCost"]), row["BillingCurrency"]
            reason, usage = _usage(row, cost, pattern, devices_by_name)
            if usage is None:
                key = (reason, currency or "no currency")
                result.left_out[key] = result.left_out.get(key, Decimal(0)) + (cost or Decimal(0))
                continue
            device, hours, dates = usage
            result.priced += 1
            pool = _tag(row["Tags"], pool_tag) if pool_tag else ""
            for day in dates:
                total = sums.setdefault((device, pool, currency, day), _Sum())
                total.cost += (cost or Decimal(0)) / len(dates)
                total.hours += hours / len(dates)
    _refuse_two_currencies(sums)
    result.lines = list(_lines(sums))
    return result


def _usage(
    row: Mapping[str, str],
    cost: Decimal | None,
    pattern: "re.Pattern[str]",
    devices_by_name: Mapping[str, tuple[str, int]],
) -> tuple[str, tuple[str, Decimal, list[date]] | None]:
    """Return an empty text and the device, device-hours and dates of a row, or the reason to leave it out and None."""
    if row["ChargeCategory"].lower() != "usage":
        return row["ChargeCategory"].lower() or "no category", None
    devices = _devices(row, pattern, devices_by_name)
    if devices is None:
        return "usage without devices", None
    if row["CommitmentDiscountStatus"].lower() == "unused":
        return "unused commitments", None
    hours, dates = _hours(row), _dates(row["ChargePeriodStart"], row["ChargePeriodEnd"])
    if cost is None or hours is None or not dates or not row["BillingCurrency"]:
        return "usage of devices without a cost, hours or a period", None
    return "", (devices[0], hours * devices[1], dates)


def _devices(
    row: Mapping[str, str], pattern: "re.Pattern[str]", devices_by_name: Mapping[str, tuple[str, int]]
) -> tuple[str, int] | None:
    details = _object(row["SkuPriceDetails"])
    for text in (str(details.get("InstanceType") or ""), *(row[name] for name in _SKU_TEXTS)):
        if text and (match := pattern.search(text.replace("_", " "))):
            return devices_by_name[_spelling(match[0])]
    return None


def _hours(row: Mapping[str, str]) -> Decimal | None:
    """Return the usage of a row in instance-hours; None if no quantity is a time."""
    for quantity, unit in _QUANTITIES:
        units_per_hour, amount = _UNITS_PER_HOUR.get(row[unit].strip().lower()), _decimal(row[quantity])
        if units_per_hour and amount is not None and amount > 0:
            return amount / units_per_hour
    return None


def _dates(begin: str, end: str) -> list[date]:
    """Return the UTC dates of a charge's period; empty if the period is invalid or longer than a year."""
    first, last = _moment(begin), _moment(end)
    if first is None or last is None or not first < last <= first + timedelta(days=_LONGEST_DAYS):
        return []
    days = ((last - timedelta(microseconds=1)).date() - first.date()).days + 1
    return [first.date() + timedelta(days=offset) for offset in range(days)]


def _lines(sums: Mapping[tuple[str, str, str, date], _Sum]) -> Iterator[dict[str, str]]:
    """Yield the lines of a price table; consecutive dates with the same price are one line."""
    periods: list[tuple[tuple[str, str, str, Decimal], date, date]] = []
    for (device, pool, currency, day), total in sorted(sums.items()):
        if total.hours <= 0 or total.cost < 0:
            continue
        key = (device, pool, currency, (total.cost / total.hours).quantize(_PRICE_STEP))
        if periods and periods[-1][0] == key and periods[-1][2] == day:
            periods[-1] = (key, periods[-1][1], day + timedelta(days=1))
        else:
            periods.append((key, day, day + timedelta(days=1)))
    for (device, pool, currency, price), begin, end in periods:
        cells = (device, pool, f"{price.normalize():f}", currency, begin.isoformat(), end.isoformat())
        yield dict(zip(COLUMNS, cells, strict=True)) | {"note": "effective cost of a FOCUS bill over device-hours"}


def _refuse_two_currencies(sums: Mapping[tuple[str, str, str, date], _Sum]) -> None:
    seen: dict[tuple[str, str, date], str] = {}
    for device, pool, currency, day in sums:
        if seen.setdefault((device, pool, day), currency) != currency:
            both = f"{seen[device, pool, day]} and {currency}"
            hint = "make a table of each account's bill, and name its pool with --pool-tag"
            raise BillError(f"{device} has prices in {both} on {day}", hint=hint)


def _rows(path: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a bill with the used columns, as text. Raises `BillError`."""
    try:
        with Path(path).open("rb") as raw:
            is_parquet, is_gzip = raw.read(4) == b"PAR1", False
            raw.seek(0)
            is_gzip = raw.read(2) == b"\x1f\x8b"
        rows = _parquet(path) if is_parquet else _csv(path, is_gzip=is_gzip)
        for row in rows:
            yield {name: _text(row.get(name)) for name in (*_NEEDED, *_OPTIONAL)}
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, pa.ArrowException) as error:
        flaw = f"the bill cannot be read: {error}".splitlines()[0]
        raise BillError(flaw, where=path, hint="export it again, as CSV or Parquet") from None


def _csv(path: str, *, is_gzip: bool) -> Iterator[dict[str, Any]]:
    with Path(path).open("rb") as raw:
        unpacked: Any = gzip.GzipFile(fileobj=raw) if is_gzip else raw
        text = io.TextIOWrapper(unpacked, encoding="utf-8-sig", newline="")
        reader = csv.DictReader(text, strict=True)
        _check_header(path, list(reader.fieldnames or ()))
        yield from reader


def _parquet(path: str) -> Iterator[dict[str, Any]]:
    file = pq.ParquetFile(path)
    names = file.schema_arrow.names
    _check_header(path, names)
    wanted = [name for name in (*_NEEDED, *_OPTIONAL) if name in names]
    for batch in file.iter_batches(columns=wanted):
        yield from batch.to_pylist()


def _check_header(path: str, names: list[str]) -> None:
    if lacking := [name for name in _NEEDED if name not in names]:
        near = did_you_mean(lacking[0], names) if names else ""
        hint = f"{near} export it in FOCUS 1.0 or later".strip()
        raise BillError(f"is no bill in FOCUS: columns are missing: {', '.join(lacking)}", where=path, hint=hint)


def _types(text: str, path: str) -> Iterator[tuple[str, tuple[str, int]]]:
    reader = csv.DictReader(text.splitlines())
    if sorted(reader.fieldnames or ()) != ["device_name", "devices", "instance_type"]:
        raise BillError("no list of instance types", where=path, hint="its columns: instance_type,device_name,devices")
    for row in reader:
        name, device, number = ((row[key] or "").strip() for key in ("instance_type", "device_name", "devices"))
        if not name or not device or not number.isdecimal() or not 0 < int(number) < 1 << 16:
            where = f"{path}:{reader.line_num}"
            raise BillError("no instance type", where=where, hint="such as p5.48xlarge,NVIDIA H100 80GB HBM3,8")
        yield name, (device, int(number))


def _longest_first(names: Mapping[str, object]) -> list[str]:
    return sorted((name.replace("_", " ") for name in names), key=lambda name: (-len(name), name))


def _spelling(name: str) -> str:
    return name.replace("_", " ").lower()


def _tag(tags: str, key: str) -> str:
    value = _object(tags).get(key)
    return "" if value is None else str(value).strip()


def _object(text: str) -> dict[str, Any]:
    """Parse a cell with a JSON object or a list of pairs; empty for anything else."""
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    if isinstance(value, list):  # a map of Parquet
        value = dict(item for item in value if isinstance(item, list) and len(item) == 2)  # noqa: PLR2004
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:  # noqa: ANN401 - a cell
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat()
    return json.dumps(value, default=str) if isinstance(value, list | dict) else str(value)


def _decimal(text: str) -> Decimal | None:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() and abs(number) < _LARGEST else None


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
