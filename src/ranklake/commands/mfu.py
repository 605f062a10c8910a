"""``ranklake mfu``: the calculator. It needs no lake; a run's own MFU is in the table ``mfu``."""

import math
import sys
from pathlib import Path
from typing import Any

import click

from ranklake.commands.options import Number, json_option
from ranklake.errors import RanklakeError
from ranklake.lake.rollups.flops import (
    CONVENTIONS,
    N_CONVENTIONS,
    RECOMPUTE,
    GivenPeak,
    Model,
    Utilization,
    convention,
    named_peak,
    token_flops,
    utilization,
)
from ranklake.lake.rollups.mfu_rows import COMPARED, INCONSISTENT, PublishedFigure, rows_with_utilization, write_csv
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell

_POSITIVE = Number(min=0, min_open=True)
_COUNT = click.IntRange(min=1)


@click.command()
@click.option("--params", type=_POSITIVE, metavar="N", help="Parameters, input embedding included.")
@click.option(
    "--active-params", type=_POSITIVE, metavar="N", help="Of a mixture of experts: parameters used per token."
)
@click.option(
    "--input-embedding-params", type=click.FloatRange(min=0), metavar="N", help="Default: vocab times d-model."
)
@click.option("--layers", type=_COUNT, help="Transformer layers.")
@click.option("--d-model", type=_COUNT, help="Model width.")
@click.option("--seq-len", type=_COUNT, help="Tokens in a sequence.")
@click.option("--vocab", type=_COUNT, help="Tokens in the vocabulary.")
@click.option("--heads", type=_COUNT, help="With --head-dim, if heads times head size is not d-model.")
@click.option("--head-dim", type=_COUNT, help="Size of a head; see --heads.")
@click.option("--flops-per-token", type=_POSITIVE, help="Counted forward and backward, for --convention counted.")
@click.option("--tokens-per-s", type=_POSITIVE, help="Of all devices together.")
@click.option("--gpus", type=_COUNT, default=1, show_default=True, help="Devices.")
@click.option("--device", help="Name as NVML reports it, such as 'NVIDIA H100 80GB HBM3', or a short one.")
@click.option("--form-factor", help="SXM, PCIe or NVL, if the device's name does not say.")
@click.option("--dtype", default="bfloat16", show_default=True, help="Data type of the matrix products.")
@click.option("--peak-flops", type=_POSITIVE, help="Dense peak FLOP/s of a device, instead of the table's.")
@click.option(
    "--convention",
    "convention_name",
    default="6N+12LHS",
    show_default=True,
    metavar="NAME",
    help=f"How to count: {', '.join(CONVENTIONS)}.",
)
@click.option(
    "--n-convention",
    type=click.Choice(N_CONVENTIONS),
    default="all",
    show_default=True,
    help="Parameters that N includes.",
)
@click.option("--recompute", type=click.Choice(RECOMPUTE), help="Activation recomputation; default: the convention's.")
@click.option(
    "--rows",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CSV of runs, instead of the options above (columns: docs/mfu.md); mfu_pct, hfu_pct and more are appended.",
)
@click.option("--published", metavar="COLUMN", help="With --rows: figures to compare; rows that disagree are flagged.")
@click.option(
    "--published-as",
    type=click.Choice(COMPARED),
    default="mfu_pct",
    show_default=True,
    help="Unit of the --published figures.",
)
@click.option(
    "--tolerance",
    default="0.01",
    show_default=True,
    metavar="X",
    help="Allowed difference, in their unit or as a share such as 2%.",
)
@click.option("--format", "row_format", type=click.Choice(["csv", "json"]), default="csv", help="Output of --rows.")
@json_option
def mfu(*, convention_name: str, n_convention: str, rows: Path | None, **given: Any) -> None:  # noqa: ANN401 - click's
    """Compute model and hardware FLOP/s utilization from their inputs.

    Every number comes with its convention and the source of its peak. An unknown device gives no ratio and a warning.
    """
    if rows is not None:
        as_json = given["as_json"] or given["row_format"] == "json"
        _print_rows(rows, convention_name, n_convention, given["recompute"], _published(given), as_json=as_json)
        return
    if given["published"] is not None:
        raise RanklakeError("--published names a column of a file", hint="give it with --rows FILE.csv")
    if given["tokens_per_s"] is None:
        raise RanklakeError("--tokens-per-s is missing", hint="give it, or --rows FILE.csv")
    heads, head_dim = given["heads"], given["head_dim"]
    if (heads is None) != (head_dim is None):
        raise RanklakeError("--heads and --head-dim go together", hint="give both or neither")
    model = Model(
        params=given["params"],
        active_params=given["active_params"],
        input_embedding_params=given["input_embedding_params"],
        layers=given["layers"],
        d_model=given["d_model"],
        seq_len=given["seq_len"],
        vocab=given["vocab"],
        attention_width=heads * head_dim if heads else None,
        flops_per_token=given["flops_per_token"],
    )
    flops = token_flops(model, convention(convention_name), n_convention=n_convention, recompute=given["recompute"])
    result = utilization(flops, given["tokens_per_s"], given["gpus"], _peak(given))
    for reason in result.reasons:
        tell(f"warning: {reason}", err=True)
    if given["as_json"]:
        show_json(_facts(result))
    else:
        _print(result)


def _peak(given: dict[str, Any]) -> GivenPeak | str:
    if given["peak_flops"] is not None:
        return GivenPeak(given["peak_flops"], "given: --peak-flops")
    if given["device"] is None:
        return "neither --device nor --peak-flops is given"
    return named_peak(given["device"], given["dtype"], given["form_factor"])


def _facts(utilization: Utilization) -> dict[str, object]:
    flops = utilization.flops
    return {
        "mfu_ratio": utilization.mfu_ratio,
        "hfu_ratio": utilization.hfu_ratio,
        "mfu_pct": None if utilization.mfu_ratio is None else 100 * utilization.mfu_ratio,
        "hfu_pct": None if utilization.hfu_ratio is None else 100 * utilization.hfu_ratio,
        "model_flops_per_token": flops.model,
        "hardware_flops_per_token": flops.hardware,
        "model_flops_per_s_per_device": utilization.model_flops_per_s,
        "hardware_flops_per_s_per_device": utilization.hardware_flops_per_s,
        "peak_flops_per_s": utilization.peak_flops_per_s,
        "peak_source": utilization.peak_source or None,
        "convention": flops.convention.name,
        "formula": flops.convention.formula,
        "convention_source": flops.convention.source,
        "n_convention": flops.n_convention or None,
        "recompute": flops.recompute,
        "reasons": list(utilization.reasons),
    }


def _print(utilization: Utilization) -> None:
    flops = utilization.flops
    counted = f", N {flops.n_convention}" if flops.n_convention else ""
    lines = [
        ("MFU", _percent(utilization.mfu_ratio)),
        ("HFU", f"{_percent(utilization.hfu_ratio)}  (recomputation: {flops.recompute})"),
        ("model", f"{flops.model:.6g} FLOP a token, {utilization.model_flops_per_s / 1e12:.2f} TFLOP/s a device"),
    ]
    if flops.hardware is not None and utilization.hardware_flops_per_s is not None:
        spent = f"{flops.hardware:.6g} FLOP a token, {utilization.hardware_flops_per_s / 1e12:.2f} TFLOP/s a device"
        lines.append(("hardware", spent))
    if utilization.peak_flops_per_s is not None:
        lines.append(
            ("peak", f"{utilization.peak_flops_per_s / 1e12:.2f} TFLOP/s a device, dense; {utilization.peak_source}")
        )
    lines += [("convention", f"{flops.convention.formula}{counted}"), ("source", flops.convention.source)]
    for name, value in lines:
        tell(f"{name:<11} {value}")


def _percent(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{100 * ratio:.2f} %"


def _published(given: dict[str, Any]) -> PublishedFigure | None:
    if given["published"] is None:
        return None
    text = str(given["tolerance"]).strip()
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise RanklakeError(f"{text!r} is not a tolerance", where="--tolerance", hint="such as 0.01, or 2%")
    is_relative = text.endswith("%")
    return PublishedFigure(
        given["published"], given["published_as"], number / 100 if is_relative else number, is_relative
    )


def _print_rows(
    path: Path,
    convention_name: str,
    n_convention: str,
    recompute: str | None,
    published: PublishedFigure | None,
    *,
    as_json: bool,
) -> None:
    try:
        with path.open(encoding="utf-8-sig", newline="") as source:
            chosen = convention(convention_name)
            rows = list(rows_with_utilization(source, str(path), chosen, n_convention, recompute, published))
    except UnicodeDecodeError as error:
        raise RanklakeError("not UTF-8", where=str(path), hint="convert it: iconv -t UTF-8") from error
    if not rows:
        raise RanklakeError("no rows are under the header", where=str(path), hint="give one a run")
    for number, row in enumerate(rows, start=1):
        if row["mfu_pct"] is None:
            tell(f"warning: {path}: row {number}: {row['mfu_reason']}", err=True)
    verdicts = [row.get("published_verdict") for row in rows]
    for number, (row, verdict) in enumerate(zip(rows, verdicts, strict=True), start=1):
        if published is not None and verdict == INCONSISTENT:
            off = f"{published.of} is {row[published.of]}, {row['published_difference']:+g} of what is stated"
            tell(f"warning: {path}: row {number}: {INCONSISTENT}: {off}", err=True)
    if published is not None:
        tell(f"{verdicts.count(INCONSISTENT)} of {len(rows)} rows are {INCONSISTENT}", err=True)
    if as_json:
        show_json(rows)
    else:
        write_csv(rows, sys.stdout)
