"""``ranklake import`` and ``ranklake prices``: files of other tools as segments, cloud bills as a price table."""

import csv
import io
from pathlib import Path

import click

from ranklake.capture.importers.formats import formats
from ranklake.capture.importers.imports import ImportResult, import_files
from ranklake.capture.sealing.keys import SealingKeys
from ranklake.capture.sealing.masked import SealedMasks
from ranklake.commands.options import contracts_option, json_option, spool_option, with_config
from ranklake.config import Config
from ranklake.lake.rollups.focus import BilledPrices, billed_prices, instance_types
from ranklake.lake.rollups.prices import COLUMNS
from ranklake.views.json_output import json_text, show_json
from ranklake.views.tell import progress_bar, tell


@click.command()
@click.argument("bills", metavar="BILL…", nargs=-1, required=True)
@click.option("--out", metavar="FILE", help="File for the price table; default: standard output.")
@click.option("--pool-tag", metavar="KEY", default="", help="Tag of the bill that names a pool of devices.")
@click.option(
    "--instances", metavar="FILE", default="", help="More instance types, as CSV: instance_type,device_name,devices."
)
@json_option
def prices(bills: tuple[str, ...], out: str | None, pool_tag: str, instances: str, *, as_json: bool) -> int:
    """Make a price table from cloud bills in FOCUS format, as CSV or Parquet.

    A price is what an hour of a device effectively cost on a date, commitments included. Review the table, and set it
    as prices under [cost]. Exits 1 if the bills give no price.
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
                    {"why": reason, "currency": currency, "effective_cost": str(cost)}
                    for (reason, currency), cost in sorted(result.left_out.items())
                ],
            }
        )  # fmt: skip
    elif out is None:
        tell(table.rstrip("\n"))
    else:
        tell(f"{len(result.lines):,} prices of {result.priced:,} of {result.charges:,} charges in {out}")
        tell(
            *(
                f"  left out: {reason}, {cost:f} {currency}"
                for (reason, currency), cost in sorted(result.left_out.items())
            )
        )
    return 0 if result.lines else 1


def _csv(result: BilledPrices) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [*COLUMNS, "note"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(result.lines)
    return text.getvalue()


@click.command(
    "import", epilog="Formats: " + "; ".join(f"{name} ({item.summary})" for name, item in formats().items()) + "."
)
@click.argument("format_name", metavar="FORMAT")
@click.argument("paths", metavar="PATH…", nargs=-1, required=True)
@spool_option
@click.option("--run", metavar="NAME", help="Run that the rows belong to; default: made from the file's name.")
@click.option(
    "--mapping", metavar="FILE", help="For table: a file, or helios, helios-capacity, straggler-trace, worker-steps."
)
@click.option("--zone", metavar="NAME", help="Zone of times that name none, such as Europe/Berlin; default: UTC.")
@contracts_option
@json_option
@with_config
def import_(
    config: Config,
    format_name: str,
    paths: tuple[str, ...],
    run: str | None,
    mapping: str | None,
    zone: str | None,
    *,
    as_json: bool,
) -> int:
    """Import telemetry of other tools into the spool, where ingest finds it.

    PATH is a file, a quoted glob, a folder (for some formats), or a URI; .gz is unpacked. Repeated imports of a file
    store nothing twice. Rows that cannot be converted are counted, and go to quarantine. Exits 1 if a file was cut off,
    or gave no rows.
    """
    keys = SealingKeys(config.capture.encryption_key, config.capture.signing_key)
    masks = SealedMasks.of(config.masking_policy, config.masking_key, config.overlay)
    with progress_bar("import") as progress:
        result = import_files(
            format_name, paths, config.uri_of("spool"),
            run=run, mapping=mapping, zone=zone, storage=config.storage, keys=keys, contracts=config.overlay,
            masks=masks, progress=progress,
        )  # fmt: skip
    tell(*([json_text(result)] if as_json else _lines(result)))
    return 1 if result.cut or result.nothing else 0


def _lines(done: ImportResult) -> list[str]:
    noun = "run" if formats()[done.format].find else "file"
    amount = f"{done.files} {noun}{'s' * (done.files != 1)}"
    runs = done.runs[0] if len(done.runs) == 1 else f"{len(done.runs)} runs"
    lines = [f"{done.format}: {amount} into {runs}"]
    lines += [f"  {count:,} left out: {why}" for why, count in done.skipped.items()]
    lines += [f"  {table:<13}{count:>14,} rows" for table, count in done.rows.items()]
    lines += [f"  {count:,} not converted ({reason}), to quarantine" for reason, count in done.refused.items()]
    lines += [f"  {count:,} not imported: {kind}" for kind, count in sorted(done.not_imported.items())]
    if done.is_all_refused:
        lines[0] = f"{done.format}: nothing of {amount} was converted; first reasons:"
        lines[1:1] = [f"  {reason}" for reason in done.first_refused]
    else:
        lines += [f"  nothing of {name} was converted: {why}" for name, why in done.nothing.items()]
    lines += [f"  the name of run {name} looked like a credential; give --run NAME for another" for name in done.hidden]
    lines += [f"  {note}" for note in done.notes]
    if done.left_out:
        lines.append(f"  {done.left_out:,} left out by filters")
    lines += [f"  {name}: {what}; what came before it is imported" for name, what in done.cut.items()]
    if done.again:
        lines.append(f"  {done.again} of them had been imported before: nothing is stored twice")
    lines.append(f"{done.segments:,} segments in {done.elapsed_s:.1f} s; next: ranklake ingest")
    return lines
