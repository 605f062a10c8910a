"""``ranklake slo`` and ``ranklake reliability``: objectives and their attainment; failure rates and their cost."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ranklake.commands.completion import complete_runs
from ranklake.commands.context import noted_role_of, with_context
from ranklake.commands.options import Number, json_option, lake_option, optional_lake, role_option
from ranklake.context import Context
from ranklake.errors import RanklakeError, did_you_mean
from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.find import find_run
from ranklake.insight.slo.document import read_folder
from ranklake.insight.slo.evaluation import (
    RunReliability,
    SloStatus,
    best_checkpoint_interval_s,
    expected_ettr,
    reliability_of,
    time_between_failures_s,
)
from ranklake.insight.slo.report import Losses, as_markdown, evaluate_all, losses_of
from ranklake.printable import printable
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell
from ranklake.views.words import percent_text

_NUMBER = Number(0, 1e12)
_HOUR_S = 3600


@click.command()
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option("--nodes", type=click.IntRange(1, 10**9), help="Number of nodes, instead of a run.")
@click.option("--failures", type=_NUMBER, default=6.5, show_default=True, help="With --nodes: per 1,000 node-days.")
@click.option("--save-s", type=_NUMBER, default=60.0, show_default=True, help="With --nodes: time of a checkpoint.")
@click.option(
    "--every-s",
    type=Number(0, 1e12, min_open=True),
    help="Checkpoint interval.  [default: the run's own, else the best]",
)
@click.option(
    "--restart-s", type=_NUMBER, default=300.0, show_default=True, help="Time from a start to the first step."
)
@click.option(
    "--queue-s", type=_NUMBER, default=0.0, show_default=True, help="Time from an interruption to the restart."
)
@json_option
@optional_lake("With a run: URI or folder of the lake.")
@with_context
def reliability(  # noqa: PLR0913 - click's, one an option
    context: Context,
    run: str | None,
    nodes: int | None,
    *,
    failures: float,
    save_s: float,
    every_s: float | None,
    restart_s: float,
    queue_s: float,
    as_json: bool,
) -> None:
    """Compute the best checkpoint interval and the effective training time ratio (ETTR) of a run or node count.

    For a run, its recorded failures and preemptions are used. With --nodes, it is a calculator without a lake.
    """
    if (run is None) == (nodes is None):
        raise RanklakeError("nothing to reckon with", where="ranklake reliability", hint="name a run, or give --nodes")
    known = _load_reliability(context, run) if run is not None else None
    between_s = (known.between_interruptions_s or math.inf) if known else time_between_failures_s(failures, nodes or 1)
    best_s = known.best_interval_s if known else best_checkpoint_interval_s(save_s, between_s)
    interval_s = every_s if every_s is not None else (known.interval_s if known else None) or best_s
    ettr = None if interval_s is None else expected_ettr(between_s, interval_s, restart_s, queue_s)
    facts = {
        "run": run if known is None else known.run,
        "nodes": nodes,
        "between_interruptions_s": between_s if math.isfinite(between_s) else None,
        "checkpoint_interval_s": interval_s,
        "best_checkpoint_interval_s": best_s,
        "expected_ettr_ratio": ettr,
        "recorded": None if known is None else asdict(known),
    }
    if as_json:
        show_json(facts)
        return
    tell(*_lines(known, nodes, failures, facts))


def _load_reliability(context: Context, run: str) -> RunReliability:
    ask = asking(context.open_lake())
    name = find_run(ask, run)
    known = reliability_of(ask, name)
    if known is None:
        raise RanklakeError("no rollup tells of its interruptions", where=name, hint="ranklake rollup")
    return known


def _lines(known: RunReliability | None, nodes: int | None, failures: float, facts: Mapping[str, object]) -> list[str]:
    def length(name: str, unknown: str) -> str:
        seconds = facts[name]
        if not isinstance(seconds, float | int):
            return unknown
        return f"{seconds / _HOUR_S:.1f} h" if seconds >= _HOUR_S else f"{seconds:.0f} s"

    if known is None:
        subject = f"{nodes:,} nodes, {failures:g} failures per 1,000 node-days"
    else:
        subject = f"{known.run}, {known.failures:,} failures, {known.preemptions:,} preemptions"
    ratio = facts["expected_ettr_ratio"]
    ettr = "not known" if ratio is None else f"{ratio:.3f}"
    return [
        f"of                    {subject}",
        f"an interruption each  {length('between_interruptions_s', 'nothing interrupted it')}",
        f"checkpoint each       {length('checkpoint_interval_s', 'not known')}",
        f"best                  {length('best_checkpoint_interval_s', 'not known')} (Young and Daly)",
        f"expected ETTR         {ettr} (Kokolis et al.; saves cost nothing)",
    ]


_COLUMNS = (
    *map(TextColumn, ("objective", "subject", "status", "alert")),
    *numbers(("promised", "attained", "budget used", "burn rate", "good", "of")),
)


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]…")
@lake_option
@role_option
@click.option("--files", metavar="FOLDER", help="Folder of objectives; default: [slo] files, else the packaged ones.")
@click.option(
    "--retrospective", is_flag=True, help="Print a Markdown list of the days and subjects that consumed the budgets."
)
@json_option
@with_context
def slo(
    context: Context, names: tuple[str, ...], role: str | None, files: str | None, *, retrospective: bool, as_json: bool
) -> int:
    """Show attainment of service level objectives, remaining error budgets, and firing alerts.

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
