"""``ranklake slo``: what was attained of each service level objective."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ranklake.commands.context import noted_role_of, with_context
from ranklake.commands.options import json_option, lake_option, role_option
from ranklake.context import Context
from ranklake.errors import did_you_mean
from ranklake.insight.runs.asking import asking
from ranklake.insight.slo.document import read_folder
from ranklake.insight.slo.evaluation import SloStatus
from ranklake.insight.slo.report import Losses, as_markdown, losses_of
from ranklake.insight.slo.table import evaluate_all
from ranklake.printable import printable
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell
from ranklake.views.words import percent_text

_COLUMNS = (
    *map(TextColumn, ("objective", "subject", "status", "alert")),
    *numbers(("promised", "attained", "budget used", "burn rate", "good", "of")),
)


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]…")
@lake_option
@role_option
@click.option("--files", metavar="FOLDER", help="Folder of objectives; default: [slo] files, else the packaged ones.")
@click.option("--retrospective", is_flag=True, help="Print as Markdown which days and subjects used up the budgets.")
@json_option
@with_context
def slo(
    context: Context, names: tuple[str, ...], role: str | None, files: str | None, *, retrospective: bool, as_json: bool
) -> int:
    """Show what was attained of service level objectives, what is left of their error budgets, and which alerts fire.

    Objectives are files in OpenSLO v1. The pipeline writes the same into the table slo. Exits 1 if an alert fires.
    """
    slos = read_folder(Path(files)) if files is not None else context.slos()
    unknown = next((name for name in names if name not in slos), None)
    if unknown is not None:
        raise click.UsageError(f"no objective {unknown!r}; {did_you_mean(unknown, slos)}")
    lake = context.open_lake()
    chosen = [each for name, each in slos.items() if not names or name in names]
    now, seen_by = datetime.now(UTC), noted_role_of(context, lake, role)
    if retrospective:
        ask = asking(lake, seen_by)
        losses = [losses_of(ask, each, promise, now) for each in chosen for promise in each.objectives]
        if as_json:
            show_json([{"slo": each.slo, "days": _plain(each), "reason": each.days.reason or None} for each in losses])
        else:
            tell(*(printable(line) for each in losses for line in as_markdown(each).splitlines()))
        return 0
    statuses = evaluate_all(lake, chosen, now, seen_by, context.burn_alerts())
    if as_json:
        show_json([{**asdict(status), "window_end_ts": status.window_end_ts.isoformat()} for status in statuses])
    else:
        measured = [status for status in statuses if status.status != "no_data"]
        if measured:
            tell(*table_lines(_COLUMNS, map(_cells, measured)))
        for status in statuses:
            if status.status == "no_data":
                about = f" of {printable(status.subject)}" if status.subject else ""
                tell(f"{status.slo}{about} is unknown: {printable(status.reason)}")
    return 1 if any(status.alert for status in statuses) else 0


def _plain(losses: Losses) -> list[dict[str, Any]]:
    return [{**row, "day": row["day"].isoformat()} for row in losses.days.rows]


def _cells(status: SloStatus) -> tuple[str, ...]:
    return (
        *(printable(status.slo), printable(status.subject), status.status, status.alert),
        *map(percent_text, (status.objective_ratio, status.attained_ratio, status.budget_used_ratio)),
        "-" if status.burn_rate is None else f"{status.burn_rate:.2f}",
        *(f"{status.good_count:,.0f}", f"{status.total_count:,.0f}"),
    )
