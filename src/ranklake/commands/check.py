"""``ranklake check``."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option
from ranklake.context import Context
from ranklake.lake.contracts.model import SEVERITIES
from ranklake.lake.migrations.drift import Drift, drift
from ranklake.lake.store.lake import Lake
from ranklake.pipeline.auditing import audit_plans
from ranklake.printable import counted, printable
from ranklake.quality.backtest import backtest
from ranklake.quality.check import run_checks
from ranklake.quality.results import CheckReport, CheckResult, Incident, incidents
from ranklake.retention.corrections import COUNTED_ANEW, repeated_on_dates
from ranklake.retention.plans.mask_proof import Proof
from ranklake.views.json_output import show_json
from ranklake.views.quality import backtest_lines
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import progress_bar, tell

_SHOWN_RUNS = 5
_MOST_DAYS = 36_500
_PERIOD = re.compile(r"([0-9]{1,5})d?")
_WORDS = (
    ("passed", "passed"),
    ("failed", "failed"),
    ("errored", "could not be computed"),
    ("skipped", "had no values"),
)
_COLUMNS = (
    *map(TextColumn, ("table", "partition", "check", "severity", "status")),
    *numbers(("rows failed", "of", "moved")),
    TextColumn("what"),
)

_INCIDENTS = (
    *map(TextColumn, ("table", "check", "severity", "opened", "closed")),
    *numbers(("partitions", "rows failed", "flaps")),
    TextColumn("what"),
)


def _days(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    result = _PERIOD.fullmatch(value or "")
    if value is not None and (result is None or not 1 <= int(result[1]) <= _MOST_DAYS):
        raise click.BadParameter(f"{value!r} is not a number of days; write 30d", ctx, parameter)
    return None if result is None else int(result[1])


@click.command()
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@click.option("--incidents", "as_incidents", is_flag=True, help="List incidents of earlier checks; check nothing.")
@click.option(
    "--backtest",
    "days",
    metavar="DAYS",
    callback=_days,
    help="Print what today's checks would have found in partitions checked in a period, such as 30d; change nothing.",
)
@click.option("--all", "again", is_flag=True, help="Check all partitions again, even unchanged ones.")
@lake_option
@json_option
@with_context
def check(
    context: Context, tables: tuple[str, ...], *, as_incidents: bool, days: int | None, again: bool, as_json: bool
) -> int:
    """Run the contracts' checks on new partitions of all tables, or of TABLEs.

    A partition is new if its files or its checks changed since its last check. If the contract says so, failing rows
    move to the table rejects. Results are in the table quality_results.

    Also reports changes by other programs: commits, columns and properties. And verifies a sample of stored values
    against their masks: at capture, at rest by retention, in shares.

    Exits 1 if a check of severity error or critical failed or could not be computed, or failed before on rows that
    still exist, if other programs changed rows or columns, or if a masked column holds clear values.
    """
    lake = context.open_lake()
    if as_incidents:
        _show_incidents([one for one in incidents(lake) if not tables or one.table in tables], as_json=as_json)
        return 0
    if days is not None:
        with progress_bar("backtest") as progress:
            results = backtest(lake, days, tables or None, progress=progress)
        if as_json:
            show_json(results.plain())
        else:
            tell(*backtest_lines(results))
        return 0
    with context.workers() as workers, progress_bar("check") as progress:
        report = run_checks(lake, tables or None, workers=workers, progress=progress, again=again)
    audit_plans(lake)
    result = drift(lake, tables or None)
    proofs = context.mask_proofs(lake, tables)
    passed = report.passed and not any(one.severity == "error" for one in result)
    passed = passed and not any(one.status == "unmasked" for one in proofs)
    if as_json:
        masks = [one.plain() for one in proofs]
        show_json({**report.summary(), "passed": passed, "drift": [one.plain() for one in result], "masks": masks})
    else:
        _print(report)
        for line in (*_remedies(lake, report), *map(_drift_line, result), *_proof_lines(proofs)):
            tell(line)
    return 0 if passed else 1


def _proof_lines(proofs: Sequence[Proof]) -> Iterator[str]:
    """Yield the columns with unmasked values; if there are none, the number of columns that were verified."""
    for proof in proofs:
        if proof.hint:
            yield printable(f"masks: {proof.problem}; {proof.hint}")
    if seen := [one for one in proofs if one.status == "masked"]:
        yield f"masks: values of {counted(len(seen), 'masked column')} sampled, and masked"


def _drift_line(drift: Drift) -> str:
    return printable(f"drift: {drift.table}: {drift.message}; {drift.hint}")


def _show_incidents(incidents: Sequence[Incident], *, as_json: bool) -> None:
    if as_json:
        show_json([one.plain() for one in incidents])
    elif incidents:
        tell(*table_lines(_INCIDENTS, map(_incident, incidents)))
    else:
        tell("no incident")


def _incident(incident: Incident) -> tuple[str, ...]:
    days = f"{incident.partitions[0].isoformat()}{' …' if len(incident.partitions) > 1 else ''}"
    return (
        incident.table,
        incident.check_id,
        incident.severity,
        f"{incident.opened:%Y-%m-%d %H:%M}",
        "open" if incident.closed is None else f"{incident.closed:%Y-%m-%d %H:%M}",
        f"{len(incident.partitions):,}",
        f"{incident.rows_failed:,}",
        f"{incident.flaps:,}" if incident.flaps else "",
        f"{days} {incident.message or ''}",
    )


def _print(report: CheckReport) -> None:
    _failures(report.unsound)
    if not report.partitions:
        tell(f"nothing changed since the last check; {counted(report.unchanged, 'partition')} unchanged")
    else:
        by_status = Counter(result.status for result in report.results)
        counts = ", ".join(f"{by_status[status]} {words}" for status, words in _WORDS if by_status[status])
        unchanged = f"; {counted(report.unchanged, 'partition')} unchanged" if report.unchanged else ""
        tell(f"{counted(report.partitions, 'partition')}: checks {counts}{unchanged}")
    if report.quarantined_rows:
        tell(f"{counted(report.quarantined_rows, 'row')} moved to the table rejects")
    if report.standing:
        tell("still failing since an earlier check:")
        _failures(report.standing)


def _remedies(lake: Lake, report: CheckReport) -> Iterator[str]:
    """Yield hints for failures that no later data can fix."""
    failing = [*report.unsound, *report.standing]
    days = [one.partition_date for one in failing if one.check_id == "steps_unique" and one.status == "failed"]
    repeated = repeated_on_dates(lake, days)
    if between := _named(one.run for one in repeated if one.between):
        yield (
            f"steps are there twice since a run's name was used again, or two processes recorded one rank: {between}; "
            "'ranklake renumber RUN' makes attempts of their lives"
        )
    if within := _named(one.run for one in repeated if one.within):
        yield f"steps are there twice within one life, whose numbers began anew: {within}; {COUNTED_ANEW}"


def _named(runs: Iterable[str]) -> str:
    names = [printable(name) for name in dict.fromkeys(runs)]
    more = f" and {len(names) - _SHOWN_RUNS} more" if len(names) > _SHOWN_RUNS else ""
    return f"{', '.join(names[:_SHOWN_RUNS])}{more}"


def _failures(results: Iterable[CheckResult]) -> None:
    """Print failures, worst first; a faulty check once for all partitions; failures of severity info in one line."""
    ranked = sorted(results, key=_badness)
    shown: dict[tuple[object, ...], list[CheckResult]] = {}
    for item in ranked:
        day = None if item.status == "errored" else item.partition_date
        if item.severity != SEVERITIES[-1]:
            shown.setdefault((item.table, item.check_id, item.message, day), []).append(item)
    if shown:
        _table([same[0] if len(same) == 1 else _merge(same) for same in shown.values()])
    if infos := [one for one in ranked if one.severity == SEVERITIES[-1]]:
        names = dict.fromkeys(f"{one.table} {one.check_id}" for one in infos)
        more = f" and {len(names) - _SHOWN_RUNS} more" if len(names) > _SHOWN_RUNS else ""
        first = ", ".join(list(names)[:_SHOWN_RUNS])
        tell(f"{counted(len(infos), 'result')} of severity info: {first}{more}; --json has them")


def _badness(result: CheckResult) -> tuple[int, bool, int, str]:
    place = SEVERITIES.index(result.severity) if result.severity in SEVERITIES else len(SEVERITIES)
    return place, result.status != "errored", -(result.rows_failed or 0), result.table


def _merge(same: Sequence[CheckResult]) -> CheckResult:
    """Merge equal results of several partitions: return the first, and their number."""
    message = f"{same[0].message or ''}, as on {counted(len(same) - 1, 'other partition')}"
    return replace(same[0], message=message)


def _table(results: Iterable[CheckResult]) -> None:
    tell(*table_lines(_COLUMNS, map(_line, results)))


def _line(result: CheckResult) -> tuple[str, ...]:
    seen = f" ({result.observed})" if result.observed else ""
    return (
        result.table,
        result.partition_date.isoformat(),
        result.check_id,
        result.severity,
        result.status,
        "" if result.rows_failed is None else f"{result.rows_failed:,}",
        "" if result.rows_checked is None else f"{result.rows_checked:,}",
        f"{result.quarantined_rows:,}" if result.quarantined_rows else "",
        f"{result.message or ''}{seen}",
    )
