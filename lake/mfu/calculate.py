"""MFU and HFU from their inputs: for one set of them, and for rows of a file."""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TextIO

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.mfu.flops import Convention, FlopsError, Model, TokenFlops, token_flops
from ranklake.lake.mfu.peaks import Peak, find_peak

ROW_COLUMNS: Final = ("n_params", "n_layers", "d_model", "seq_len", "n_gpus", "tokens_per_s")
ADDED_COLUMNS: Final = (
    "mfu_pct",
    "hfu_pct",
    "mfu_convention",
    "mfu_n_convention",
    "mfu_recompute",
    "mfu_peak_flops_per_gpu",
    "mfu_peak_source",
    "mfu_reason",
)


class RowsError(RanklakeError):
    """A file of rows that cannot be calculated; `where` is ``file:line``."""


@dataclass(frozen=True, slots=True)
class Utilization:
    """The result, with all that it hangs on.

    Attributes
    ----------
    mfu_ratio, hfu_ratio
        Model and hardware FLOP/s over peak; None where unknown, and `reasons` says why.
    model_flops_per_s, hardware_flops_per_s
        Per device.
    peak_flops_per_s, peak_source
        Per device, dense; where it is from.
    flops
        FLOPs of one token, and under which convention.
    """

    mfu_ratio: float | None
    hfu_ratio: float | None
    model_flops_per_s: float
    hardware_flops_per_s: float | None
    peak_flops_per_s: float | None
    peak_source: str
    flops: TokenFlops
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GivenPeak:
    """A peak that the user states."""

    flops_per_s: float
    source: str = "given"


def named_peak(device: str, dtype: str, form_factor: str | None = None) -> GivenPeak | str:
    """Return the table's peak of a device and number format, or the reason why there is none."""
    found = find_peak(device, dtype, form_factor)
    if isinstance(found, Peak):
        return GivenPeak(found.flops_per_s, f"table: {found.source}")
    return found.reason


def utilization(flops: TokenFlops, tokens_per_s: float, n_devices: int, peak: GivenPeak | str) -> Utilization:
    """Divide what was done by what could have been.

    Parameters
    ----------
    tokens_per_s
        Of all devices together, measured over whole steps.
    peak
        Of one device; a text is the reason why it is unknown.
    """
    rate = tokens_per_s / n_devices
    done = flops.model * rate
    spent = None if flops.hardware is None else flops.hardware * rate
    reasons = tuple(reason for reason in (peak if isinstance(peak, str) else "", flops.reason) if reason)
    if isinstance(peak, str):
        return Utilization(None, None, done, spent, None, "", flops, reasons)
    hfu = None if spent is None else spent / peak.flops_per_s
    mfu = done / peak.flops_per_s
    if max(mfu, hfu or 0) > 1:
        reasons = (*reasons, "more than the peak was done: it is of another device or number format")
    return Utilization(mfu, hfu, done, spent, peak.flops_per_s, peak.source, flops, reasons)


def rows_with_utilization(
    source: TextIO, name: str, chosen: Convention, n_convention: str
) -> Iterator[Mapping[str, object]]:
    """Yield each row of a CSV with `ADDED_COLUMNS` after its own.

    Parameters
    ----------
    source, name
        CSV with the columns `ROW_COLUMNS`, and optionally ``peak_flops_per_gpu`` (else ``gpu`` and ``precision`` name
        the peak) and ``activation_checkpointing`` (true is full recomputation; empty is unknown, and so is HFU then).
        Others pass through.

    Raises
    ------
    RowsError
        A column is missing, or a cell is not what it must be: ``file:line: what``.
    """
    reader = csv.DictReader(source)
    header = reader.fieldnames or ()
    for column in ROW_COLUMNS:
        if column not in header:
            raise RowsError(f"no column {column!r}", where=f"{name}:1", mend=did_you_mean(column, header))
    for row in reader:
        where = f"{name}:{reader.line_num}"
        if None in row or None in row.values():
            raise RowsError(f"the row has not {len(header)} cells", where=where, mend="check quotes and commas")
        yield {**row, **_added(row, where, chosen, n_convention)}


def _added(row: Mapping[str, str], where: str, chosen: Convention, n_convention: str) -> dict[str, object]:
    number = {column: _number(row, column, where) for column in ROW_COLUMNS}
    vocab = row.get("vocab") or row.get("vocab_size")
    model = Model(
        params=number["n_params"],
        layers=_whole(row, "n_layers", where),
        d_model=_whole(row, "d_model", where),
        seq_len=_whole(row, "seq_len", where),
        vocab=int(vocab) if vocab and vocab.isdigit() else None,
    )
    recompute = _recompute(row.get("activation_checkpointing", ""), where)
    try:
        flops = token_flops(model, chosen, n_convention=n_convention, recompute=recompute)
    except FlopsError as error:
        raise RowsError(error.what, where=where, mend=error.mend) from error
    found = utilization(flops, number["tokens_per_s"], _whole(row, "n_gpus", where), _row_peak(row, where))
    reasons = found.reasons if recompute else (*found.reasons, "activation_checkpointing is not said")
    hfu = found.hfu_ratio if recompute else None
    values = (
        _percent(found.mfu_ratio),
        _percent(hfu),
        chosen.name,
        flops.n_convention,
        recompute or "",
        found.peak_flops_per_s,
        found.peak_source,
        "; ".join(reasons),
    )
    return dict(zip(ADDED_COLUMNS, values, strict=True))


def _row_peak(row: Mapping[str, str], where: str) -> GivenPeak | str:
    if row.get("peak_flops_per_gpu"):
        return GivenPeak(_number(row, "peak_flops_per_gpu", where), "given: peak_flops_per_gpu")
    if row.get("gpu") and row.get("precision"):
        return named_peak(row["gpu"], row["precision"])
    return "neither peak_flops_per_gpu nor gpu and precision are given"


def _recompute(cell: str, where: str) -> str | None:
    words = {"true": "full", "1": "full", "yes": "full", "false": "none", "0": "none", "no": "none", "": None}
    word = cell.strip().lower()
    words |= {kind: kind for kind in ("none", "selective", "full")}
    if word not in words:
        raise RowsError(f"activation_checkpointing is {cell!r}", where=where, mend="write true or false")
    return words[word]


def _number(row: Mapping[str, str], column: str, where: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise RowsError(f"{column} is {row[column]!r}, not a number above 0", where=where)
    return value


def _whole(row: Mapping[str, str], column: str, where: str) -> int:
    value = _number(row, column, where)
    if not value.is_integer():
        raise RowsError(f"{column} is {row[column]!r}, not a whole number above 0", where=where)
    return int(value)


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else round(100 * ratio, 4)


def write_csv(rows: Iterable[Mapping[str, object]], sink: TextIO) -> None:
    """Write rows as CSV with a header; None is an empty cell."""
    writer: csv.DictWriter[str] | None = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(sink, fieldnames=list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow(row)
