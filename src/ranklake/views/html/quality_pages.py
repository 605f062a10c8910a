"""The pages of quality: facts of `ranklake.quality.report` as figures, tables and charts."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Final

from ranklake.quality.report.state import (
    ERRORED,
    FAILING,
    PASSED,
    QUARANTINED,
    SKIPPED,
    STATES,
    UNCHECKED,
    WARNING,
    CheckState,
    QualityState,
    TableState,
    Totals,
)
from ranklake.quality.results import RESULTS
from ranklake.views.html import quality_incidents
from ranklake.views.html.charts import Chart, heat_map, stacked_by_date
from ranklake.views.html.figures import Column, FactTable, Figure, Source, versions_text
from ranklake.views.html.quality_trend import objectives_table, trend_charts
from ranklake.views.html.shell import Entry, Page, table_file
from ranklake.views.html.site import Section
from ranklake.views.html.sparkline import Sparkline, sparkline
from ranklake.views.words import counted

SECTION: Final = "quality"
HOME: Final = f"{SECTION}/index.html"
OPEN: Final = (FAILING, ERRORED, WARNING)
_MOST_FIRST: Final = 12
_MOST_OF_A_TABLE: Final = 3
_MOST_DRAWN: Final = 40

_DEFINITIONS: Final = {
    "checks_failing": ("checks failing", "{check}", FAILING,
        "Checks of severity critical or error whose failing rows are still in the table, on any partition."),
    "checks_errored": ("checks not computed", "{check}", ERRORED,
        "Checks that could not be computed on some partition: nothing is known of the data there."),
    "checks_warning": ("warnings", "{check}", WARNING,
        "Checks of severity warning or info whose failing rows are still in the table, on any partition."),
    "partitions_unsound": ("partitions affected", "{partition}", "",
        "Partitions (a table's UTC dates) on which a check fails or could not be computed."),
    "rows_failed": ("rows failing", "{row}", "",
        "Rows that fail a check and are still in the table, summed over checks: one that fails two counts twice."),
    "rows_quarantined": ("rows quarantined", "{row}", QUARANTINED,
        "Rows that the last check of each partition moved to the table rejects."),
    "checks": ("checks", "{check}", "", "Checks with a result on any partition."),
    "partitions": ("partitions checked", "{partition}", "", "Partitions with a result that still exist."),
}  # fmt: skip
_UNCHECKED: Final = (
    "Partitions that were never checked, or whose files or checks changed since: compared are the files that the Delta "
    "log names with files_sha256 of the last result, which SQL cannot see."
)
_TRAIL: Final = (("Data quality", HOME),)
_TABLE_COLUMNS: Final = (
    Column("state", "Worst state of its checks and partitions."),
    Column("table", "Name, and whether it holds facts or is derived from others.", "table"),
    Column("failing", "Checks of severity critical or error that fail.", "checks_failing", "{check}", is_number=True),
    Column("not computed", "Checks that could not be computed.", "checks_errored", "{check}", is_number=True),
    Column("warnings", "Checks of severity warning or info that fail.", "checks_warning", "{check}", is_number=True),
    Column("checks", "Checks with a result.", "checks", "{check}", is_number=True),
    Column("partitions affected", "Partitions where one fails or could not be computed.", "partitions_unsound",
           "{partition}", is_number=True),
    Column("of", "Partitions with a result.", "partitions", "{partition}", is_number=True),
    Column("rows failing", "Summed over checks.", "rows_failed", "{row}", is_number=True),
    Column("history", "Bars: rows failing, by partition date, on a logarithmic scale. Line: rows checked."),
    Column("last checked", "When the last of its partitions was checked.", "checked_at"),
)  # fmt: skip
_CHECK_COLUMNS: Final = (
    Column("state", "Worst state on any partition."),
    Column("check", "Its id in the contract, the column it is about, and what a failure is.", "check_id"),
    Column("severity", "How bad a failure is.", "severity"),
    Column("partitions failed", "Partitions where rows that fail are still in the table.", "partitions_failed",
           "{partition}", is_number=True),
    Column("not computed", "Partitions where it could not be computed.", "partitions_errored", "{partition}",
           is_number=True),
    Column("of", "Partitions with a result.", "partitions", "{partition}", is_number=True),
    Column("rows failed", "Summed over partitions, those in quarantine included.", "rows_failed", "{row}",
           is_number=True),
    Column("rows checked", "Summed over partitions; NULL passes unchecked.", "rows_checked", "{row}", is_number=True),
    Column("quarantined", "Rows moved to the table rejects.", "rows_quarantined", "{row}", is_number=True),
    Column("history", "Bars: rows failing, by partition date, on a logarithmic scale. Line: rows checked."),
)  # fmt: skip
_PARTITION_COLUMNS: Final = (
    Column("state", "Worst state of a check on it."),
    Column("partition (UTC date)", "Date of its rows.", "partition_date"),
    Column("failing", "Checks of severity critical or error that fail.", "checks_failing", "{check}", is_number=True),
    Column("not computed", "Checks that could not be computed.", "checks_errored", "{check}", is_number=True),
    Column("warnings", "Checks of severity warning or info that fail.", "checks_warning", "{check}", is_number=True),
    Column("rows checked", "Most rows that a check was held against.", "rows_checked", "{row}", is_number=True),
    Column("rows failing", "Still in the table, summed over checks.", "rows_failed", "{row}", is_number=True),
    Column("quarantined", "Rows moved to the table rejects.", "rows_quarantined", "{row}", is_number=True),
    Column("version", "Delta version of the table that was checked.", "table_version", is_number=True),
    Column("checked", "When it was checked last.", "checked_at"),
)  # fmt: skip


def section(found: QualityState) -> Section:
    """Return the quality pages: one of all tables, one of incidents, and one a table."""
    headline = verdict(found.state, found.totals)
    names = frozenset(one.table for one in found.tables)
    links = {name: _href(name) for name in sorted(names)}
    incidents = quality_incidents.page(found.standing, links, _TRAIL)
    pages = [_overview(found, headline), incidents, *(_of_table(one, names, found.version) for one in found.tables)]
    entries = [Entry(incidents.title, "page", quality_incidents.state_of(found.standing), incidents.path)]
    entries += [Entry(one.table, f"{one.kind} table", one.state, _href(one.table)) for one in found.tables]
    entries += [
        Entry(f"{check.table} · {check.check_id}", "check", check.state, f"{_href(check.table)}#{_anchor(check)}")
        for one in found.tables
        for check in one.checks
    ]
    return Section(SECTION, "Quality", found.state, headline, HOME, tuple(pages), tuple(entries))


def verdict(state: str, totals: Totals) -> str:
    """Return the state in a sentence."""
    said = [
        *([f"{counted(totals.checks_failing, 'check')} failing"] if totals.checks_failing else []),
        *([f"{totals.checks_errored:,} could not be computed"] if totals.checks_errored else []),
        *([counted(totals.checks_warning, "warning")] if totals.checks_warning else []),
        *([f"{counted(totals.partitions_unchecked, 'partition')} not checked"] if totals.partitions_unchecked else []),
    ]
    if said:
        return ", ".join(said)
    if state in {PASSED, QUARANTINED}:
        return f"All {totals.checks:,} checks pass"
    return "Nothing was checked yet"


def _overview(found: QualityState, headline: str) -> Page:
    digest = _digest([found.lake, found.version, found.state, found.totals, found.standing, *found.tables])
    return Page(HOME, "Data quality", "quality.html", partial(_overview_facts, found, headline), digest)


def _overview_facts(found: QualityState, headline: str) -> dict[str, Any]:
    note = versions_text({RESULTS: found.version})
    every = [check for one in found.tables for check in one.checks if check.state in OPEN]
    first = list(islice(_first(every), _MOST_FIRST))
    every_part = (one for table in found.tables for one in table.partitions)
    counts = Counter((one.day, one.state) for one in every_part if one.state != PASSED)
    shown = [state for state in STATES if any(state == other for _, other in counts)]
    values = [{"date": day, "state": state, "count": count} for (day, state), count in sorted(counts.items())]
    chart = Chart(
        "states", "Partitions that did not pass, by date",
        "Partitions of all tables by date and state; the pages of tables list the same.",
        stacked_by_date(values, shown, "partitions"),
    )  # fmt: skip
    return {
        "quality": found,
        "headline": headline,
        "figures": _figures(found.totals, Source("totals", found.sources.totals, note)),
        "first": first,
        "more": len(every) - len(first),
        "sparklines": {one.table: _of_all(one) for one in found.tables},
        "table": FactTable("Tables, worst first", Source("tables", found.by_table, note), _TABLE_COLUMNS, ["table"]),
        "charts": [*([chart] if values else []), *trend_charts(found.standing)],
        "objectives": objectives_table(found.standing),
        "incidents": (
            quality_incidents.PATH,
            quality_incidents.headline(found.standing),
            quality_incidents.state_of(found.standing),
        ),
        "href": _href,
        "anchor": _anchor,
    }


def _first(checks: Iterable[CheckState]) -> Iterator[CheckState]:
    """Yield checks worst first, but a few of each table, so that one table does not hide the others."""
    seen: Counter[str] = Counter()
    for check in sorted(checks, key=lambda one: (STATES.index(one.state), -(one.rows_failed or 0))):
        seen[check.table] += 1
        if seen[check.table] <= _MOST_OF_A_TABLE:
            yield check


def _of_table(one: TableState, tables: frozenset[str], version: int | None) -> Page:
    linked = tables.intersection({*one.made_from, *one.used_by})
    facts = partial(_table_facts, one, linked, version)
    digest = _digest([one, *sorted(linked)])
    return Page(_href(one.table), one.table, "quality_table.html", facts, digest, _TRAIL)


def _table_facts(one: TableState, linked: frozenset[str], version: int | None) -> dict[str, Any]:
    note = versions_text({RESULTS: version})
    told = [check for check in one.checks if check.state not in {PASSED, SKIPPED}][:_MOST_DRAWN]
    rows = [_name(check) for check in told]
    values = [
        {"date": point.day, "row": _name(check), "state": point.state, "failed": point.rows_failed,
         "checked": point.rows_checked}
        for check in told
        for point in check.history
        if point.state not in {PASSED, SKIPPED}
    ]  # fmt: skip
    states = {str(value["state"]) for value in values}
    days = [one.partitions[-1].day, one.partitions[0].day]
    chart = Chart(
        "history", f"Checks that did not pass, by date, the worst {_MOST_DRAWN}",
        "Where a check did not pass, by date; the table below lists the same.",
        heat_map(values, sorted(states, key=STATES.index), rows, days), is_wide=True,
    )  # fmt: skip
    return {
        "one": one,
        "headline": verdict(one.state, one.totals),
        "figures": _figures(one.totals, Source("totals", one.sources.totals, note)),
        "sparklines": {_anchor(check): _of_check(check) for check in one.checks},
        "checks": FactTable(
            "Checks, worst first", Source("checks", one.sources.checks, note), _CHECK_COLUMNS,
            ["check_id", "column", "severity"],
        ),
        "partitions": FactTable(
            "Partitions, latest first", Source("partitions", one.sources.partitions, note), _PARTITION_COLUMNS,
            ["partition_date"],
        ),
        "charts": [chart] if values else [],
        "open": OPEN,
        "tables": linked,
        "href": _href,
        "anchor": _anchor,
    }  # fmt: skip


def _figures(totals: Totals, source: Source) -> list[Figure]:
    figures = [
        Figure(label, value, unit, definition, source, name, state if value else "")
        for name, (label, unit, state, definition) in _DEFINITIONS.items()
        for value in [getattr(totals, name)]
    ]
    unknown = totals.partitions_unchecked
    state = UNCHECKED if unknown else ""
    log = Source("log", "", "ranklake check tells the same: it checks what changed.")
    return [*figures, Figure("partitions not checked", unknown, "{partition}", _UNCHECKED, log, "", state)]


def _of_check(check: CheckState) -> Sparkline:
    failed = [one for one in check.history if one.rows_failed]
    most = max((one.rows_failed or 0 for one in failed), default=0)
    told = f"rows failed on {len(failed)} of {counted(len(check.history), 'date')}, at most {most:,}"
    return sparkline(told, [(one.state, one.rows_checked, one.rows_failed) for one in check.history])


def _of_all(table: TableState) -> Sparkline:
    days = sorted(table.partitions, key=lambda one: one.day)
    failed = [one for one in days if one.rows_failed]
    most = max((one.rows_failed for one in failed), default=0)
    told = f"rows failed on {len(failed)} of {counted(len(days), 'date')}, at most {most:,}"
    return sparkline(told, [(one.state, one.rows_checked, one.rows_failed) for one in days])


def _name(check: CheckState) -> str:
    return check.check_id if check.column is None or ":" in check.check_id else f"{check.check_id} ({check.column})"


def _href(table: str) -> str:
    return f"{SECTION}/{table_file(table)}"


def _anchor(check: CheckState) -> str:
    told = f"{check.check_id} {check.column or ''} {check.severity}"
    return f"check-{hashlib.sha256(told.encode()).hexdigest()[:10]}"


def _digest(facts: Iterable[Any]) -> str:
    return hashlib.sha256("\n".join(map(repr, facts)).encode("utf-8", "surrogatepass")).hexdigest()
