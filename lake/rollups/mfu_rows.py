"""Computes MFU and HFU for the rows of a CSV file, and compares them with published figures in the file.

Columns of the file. Those that the convention needs (`NEEDED`) are required; unknown columns are copied:

    n_gpus                    number of devices
    tokens_per_s              of all devices; or tokens_per_s_per_gpu; or global_batch_seqs and sec_per_iter
    n_params                  parameters, including the input embedding; if the convention uses N
    n_layers, d_model, seq_len, vocab
    flops_per_token           for the convention ``counted``
    active_params, input_embedding_params, n_heads with head_dim
    peak_flops_per_gpu        dense peak; or gpu and precision, to look up the peak
    activation_checkpointing  true (full), false, selective; empty is unknown, and HFU is then unknown, too
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TextIO

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.rollups.flops import (
    Convention,
    FlopsError,
    GivenPeak,
    Model,
    Utilization,
    named_peak,
    token_flops,
    utilization,
)

NEEDED: Final = {
    "params": "n_params",
    "layers": "n_layers",
    "d_model": "d_model",
    "seq_len": "seq_len",
    "vocab": "vocab",
    "flops_per_token": "flops_per_token",
}
"""Column of each attribute of `Model`."""
ALIASES: Final = {
    "n_params": ("params",),
    "n_layers": ("layers", "nlayers"),
    "d_model": ("nhidden", "hidden_size"),
    "vocab": ("vocab_size", "vocab_padded"),
    "n_heads": ("nheads", "heads"),
    "n_gpus": ("gpus",),
    "global_batch_seqs": ("gbs",),
}
ADDED_COLUMNS: Final = (
    "mfu_pct",
    "hfu_pct",
    "mfu_convention",
    "mfu_n_convention",
    "mfu_recompute",
    "mfu_peak_flops_per_gpu",
    "mfu_peak_source",
    "mfu_reason",
    "model_tflops_per_gpu",
    "hardware_tflops_per_gpu",
)
COMPARED: Final = ("mfu_pct", "hfu_pct", "model_tflops_per_gpu", "hardware_tflops_per_gpu")
WITHIN, INCONSISTENT, UNKNOWN = "within tolerance", "inconsistent as published", "not computed"


class RowsError(RanklakeError):
    """An invalid file or row; `where` is ``file:line``."""


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """A column with published figures to compare.

    Attributes
    ----------
    column
        Name of the column.
    of
        The computed column to compare with: one of `COMPARED`.
    tolerance, is_relative
        Largest difference, in the column's unit, or as a share of the published figure if relative.
    """

    column: str
    of: str = "mfu_pct"
    tolerance: float = 0.01
    is_relative: bool = False

    def verdict(self, stated: float | None, computed: float | None) -> str:
        """Return `WITHIN`, `INCONSISTENT` or `UNKNOWN` for a published and a computed figure."""
        if stated is None or computed is None:
            return UNKNOWN
        largest = self.tolerance * abs(stated) if self.is_relative else self.tolerance
        return WITHIN if abs(computed - stated) <= largest * (1 + 1e-9) else INCONSISTENT


def rows_with_utilization(
    source: TextIO,
    name: str,
    chosen: Convention,
    n_convention: str,
    recompute: str | None = None,
    published: PublishedFigure | None = None,
) -> Iterator[Mapping[str, object]]:
    """Yield each row of a CSV file, with `ADDED_COLUMNS` after its own columns.

    Parameters
    ----------
    source, name
        The file, with the columns in this module's docstring, and its name for errors. A column of the file with the
        name of an added column is returned as ``given_NAME``.
    recompute
        Kind of recomputation for rows without one.
    published
        Published figures to compare. Adds ``published_difference`` (computed minus published) and
        ``published_verdict`` (`WITHIN`, `INCONSISTENT` or `UNKNOWN`) as last columns.

    Raises
    ------
    RowsError
        A column is missing or a cell is invalid.
    """
    reader = csv.DictReader(source)
    header = reader.fieldnames or ()
    _check_header(header, name, chosen, published)
    for row in reader:
        where = f"{name}:{reader.line_num}"
        if None in row or None in row.values():
            raise RowsError(f"the row does not have {len(header)} cells", where=where, hint="check quotes and commas")
        added = _with_model_columns(_canonical(row), where, chosen, n_convention, recompute)
        original = {f"given_{column}" if column in added else column: cell for column, cell in row.items()}
        yield {**original, **added, **({} if published is None else _deviation_columns(row, where, added, published))}


def _check_header(header: Iterable[str], name: str, chosen: Convention, published: PublishedFigure | None) -> None:
    columns = {*header}
    known = columns | {column for column, others in ALIASES.items() if columns.intersection(others)}
    speeds = ({"tokens_per_s"}, {"tokens_per_s_per_gpu"}, {"global_batch_seqs", "sec_per_iter", "seq_len"})
    needed = [*(NEEDED[attribute] for attribute in chosen.model.needs), "n_gpus"]
    needed += [] if any(known >= speed for speed in speeds) else ["tokens_per_s"]
    if "active_params" in known:
        needed = [column for column in needed if column != "n_params"]
    for column in needed:
        if column not in known:
            raise RowsError(f"no column {column!r}", where=f"{name}:1", hint=did_you_mean(column, sorted(columns)))
    if published is not None and published.column not in columns:
        hint = did_you_mean(published.column, sorted(columns))
        raise RowsError(f"no column {published.column!r} to compare with", where=f"{name}:1", hint=hint)


def _canonical(row: Mapping[str, str]) -> dict[str, str]:
    """Return a row with columns renamed from their aliases."""
    cells = dict(row)
    for column, others in ALIASES.items():
        for other in others:
            if not cells.get(column) and cells.get(other):
                cells[column] = cells[other]
    return cells


def _with_model_columns(
    row: Mapping[str, str], where: str, chosen: Convention, n_convention: str, otherwise: str | None
) -> dict[str, object]:
    heads = [_whole_number(row, column, where) if row.get(column) else None for column in ("n_heads", "head_dim")]
    width = None if None in heads else (heads[0] or 0) * (heads[1] or 0)
    embedding = row.get("input_embedding_params")
    model = Model(
        params=_optional(row, "n_params", where),
        active_params=_optional(row, "active_params", where),
        input_embedding_params=None if not embedding else _number(row, "input_embedding_params", where, least=0),
        layers=_whole_number(row, "n_layers", where) if row.get("n_layers") else None,
        d_model=_whole_number(row, "d_model", where) if row.get("d_model") else None,
        seq_len=_whole_number(row, "seq_len", where) if row.get("seq_len") else None,
        vocab=_whole_number(row, "vocab", where) if row.get("vocab") else None,
        attention_width=width,
        flops_per_token=_optional(row, "flops_per_token", where),
    )
    recompute = _recompute(row.get("activation_checkpointing", ""), where) or otherwise
    try:
        flops = token_flops(model, chosen, n_convention=n_convention, recompute=recompute)
    except FlopsError as error:
        raise RowsError(error.what, where=where, hint=error.hint) from error
    gpus = _whole_number(row, "n_gpus", where)
    result = utilization(flops, _tokens_per_s(row, gpus, where), gpus, _row_peak(row, where))
    reasons = result.reasons if recompute else (*result.reasons, "activation_checkpointing is not said")
    values = (
        _percent(result.mfu_ratio),
        _percent(result.hfu_ratio if recompute else None),
        chosen.name,
        flops.n_convention,
        recompute or "",
        result.peak_flops_per_s,
        result.peak_source,
        "; ".join(reasons),
        *_tflops(result, with_hardware=recompute is not None),
    )
    return dict(zip(ADDED_COLUMNS, values, strict=True))


def _tflops(result: Utilization, *, with_hardware: bool) -> tuple[float, float | None]:
    hardware = result.hardware_flops_per_s if with_hardware else None
    return round(result.model_flops_per_s / 1e12, 4), None if hardware is None else round(hardware / 1e12, 4)


def _tokens_per_s(row: Mapping[str, str], gpus: int, where: str) -> float:
    if row.get("tokens_per_s"):
        return _number(row, "tokens_per_s", where)
    if row.get("tokens_per_s_per_gpu"):
        return _number(row, "tokens_per_s_per_gpu", where) * gpus
    if row.get("sec_per_iter") and row.get("global_batch_seqs"):
        sequences = _number(row, "global_batch_seqs", where)
        return sequences * _number(row, "seq_len", where) / _number(row, "sec_per_iter", where)
    return _number(row, "tokens_per_s", where)


def _deviation_columns(
    row: Mapping[str, str], where: str, added: Mapping[str, object], published: PublishedFigure
) -> dict[str, object]:
    stated = _number(row, published.column, where, least=0) if row[published.column].strip() else None
    computed = added[published.of]
    assert computed is None or isinstance(computed, float)
    difference = None if stated is None or computed is None else round(computed - stated, 4)
    return {"published_difference": difference, "published_verdict": published.verdict(stated, computed)}


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
        raise RowsError(f"activation_checkpointing is {cell!r}", where=where, hint="write true or false")
    return words[word]


def _optional(row: Mapping[str, str], column: str, where: str) -> float | None:
    return _number(row, column, where) if row.get(column) else None


def _number(row: Mapping[str, str], column: str, where: str, least: float | None = None) -> float:
    """Parse a cell as a number that is above 0, or at least `least`. Raises `RowsError`."""
    cell = row.get(column, "")
    try:
        value = float(cell)
    except ValueError:
        value = -1.0
    if not (value > 0 if least is None else least <= value) or value == float("inf"):
        raise RowsError(
            f"{column} is {cell!r}, not a number {'above 0' if least is None else ''}".rstrip(), where=where
        )
    return value


def _whole_number(row: Mapping[str, str], column: str, where: str) -> int:
    value = _number(row, column, where)
    if not value.is_integer():
        raise RowsError(f"{column} is {row[column]!r}, not a whole number above 0", where=where)
    return int(value)


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else round(100 * ratio, 4)


def write_csv(rows: Iterable[Mapping[str, object]], sink: TextIO) -> None:
    """Write rows as CSV with a header; None is written as an empty cell."""
    writer: csv.DictWriter[str] | None = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(sink, fieldnames=list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow(row)
