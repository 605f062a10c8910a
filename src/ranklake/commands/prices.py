"""``ranklake prices``: a price table from cloud bills."""

import csv
import io
from pathlib import Path

import click

from ranklake.commands.options import json_option
from ranklake.lake.rollups.focus import BilledPrices, billed_prices, instance_types
from ranklake.lake.rollups.prices import COLUMNS
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell


@click.command()
@click.argument("bills", metavar="BILL…", nargs=-1, required=True)
@click.option("--out", metavar="FILE", help="Where the price table goes; default: standard output.")
@click.option("--pool-tag", metavar="KEY", default="", help="Tag of the bill that names a pool of devices.")
@click.option(
    "--instances", metavar="FILE", default="", help="More instance types, as CSV: instance_type,device_name,devices."
)
@json_option
def prices(bills: tuple[str, ...], out: str | None, pool_tag: str, instances: str, *, as_json: bool) -> int:
    """Make a price table from cloud bills in FOCUS, CSV or Parquet.

    A price is what an hour of a device effectively cost on a date, commitments included. Look at the table, and set it
    as prices under [cost]. Exits 1 if no price comes of the bills.
    """
    result = billed_prices(list(bills), instance_types(instances), pool_tag)
    table = _csv(result)
    if out is not None:
        Path(out).write_text(table, encoding="utf-8")
    if as_json:
        show_json(
            {
                "charges": result.charges, "priced": result.priced, "prices": result.lines,
                "left_out": [
                    {"why": why, "currency": currency, "effective_cost": str(cost)}
                    for (why, currency), cost in sorted(result.left_out.items())
                ],
            }
        )  # fmt: skip
    elif out is None:
        tell(table.rstrip("\n"))
    else:
        tell(f"{len(result.lines):,} prices of {result.priced:,} of {result.charges:,} charges in {out}")
        tell(*(f"  left out: {why}, {cost:f} {currency}" for (why, currency), cost in sorted(result.left_out.items())))
    return 0 if result.lines else 1


def _csv(result: BilledPrices) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [*COLUMNS, "note"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(result.lines)
    return text.getvalue()
