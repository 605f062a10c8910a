"""The pages of quality: facts of `ranklake.quality.report` as figures, tables, charts and sparklines.

Sparklines are paths of an SVG that the template draws, without a library.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from math import log1p
from typing import Any, Final

from ranklake.printable import counted
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
    QualityOverview,
    QualityState,
    TableState,
    Totals,
)
from ranklake.quality.results import RESULTS
from ranklake.views.html.charts import PERCENT, Chart, lines_by_time, stacked_by_date, states_by_date
from ranklake.views.html.figures import (
    Column,
    FactTable,
    Figure,
    Measure,
    Source,
    answer_table,
    figures,
    source_of,
    versions_text,
)
from ranklake.views.html.shell import Entry, Page, digest_of, table_file
from ranklake.views.html.site import Section

SECTION: Final = "quality"
HOME: Final = f"{SECTION}/index.html"
OPEN: Final = (FAILING, ERRORED, WARNING)
_MOST_FIRST: Final = 12
_MOST_OF_A_TABLE: Final = 3
_MOST_DRAWN: Final = 40

_MEASURES: Final = (
    Measure("checks_failing", "checks failing", "{check}",
            "Checks of severity critical or error whose failing rows are still in the table, on any partition.",
            state=FAILING),
    Measure("checks_errored", "checks not computed", "{check}",
            "Checks that could not be computed on some partition: nothing is known of the data there.", state=ERRORED),
    Measure("checks_warning", "warnings", "{check}",
            "Checks of severity warning or info whose failing rows are still in the table, on any partition.",
            state=WARNING),
    Measure("partitions_unsound", "partitions affected", "{partition}",
            "Partitions (a table's UTC dates) on which a check fails or could not be computed."),
    Measure("rows_failed", "rows failing", "{row}",
            "Rows that fail a check and are still in the table, summed over checks: one that fails two counts twice."),
    Measure("rows_quarantined", "rows quarantined", "{row}",
            "Rows that the last check of each partition moved to the table rejects.", state=QUARANTINED),
    Measure("checks", "checks", "{check}", "Checks with a result on any partition."),
    Measure("partitions", "partitions checked", "{partition}", "Partitions with a result that still exist."),
)  # fmt: skip
_UNCHECKED: Final = (
    "Partitions that were never checked, or whose files or checks changed since: compared are the files that the Delta "
    "log names with files_sha256 of the last result, which SQL cannot see."
)
_ABOVE: Final = (("Data quality", HOME),)
_TABLE_COLUMNS: Final = (
    Column("state", "Worst state of its checks and partitions."),
    Column("table", "Name, and whether it holds facts or is derived from others.", "table"),
    Column.number("failing", "Checks of severity critical or error that fail.", "checks_failing", "{check}"),
    Column.number("not computed", "Checks that could not be computed.", "checks_errored", "{check}"),
    Column.number("warnings", "Checks of severity warning or info that fail.", "checks_warning", "{check}"),
    Column.number("checks", "Checks with a result.", "checks", "{check}"),
    Column.number("partitions affected", "Partitions where one fails or could not be computed.", "partitions_unsound",
                  "{partition}"),
    Column.number("of", "Partitions with a result.", "partitions", "{partition}"),
    Column.number("rows failing", "Summed over checks.", "rows_failed", "{row}"),
    Column("history", "Bars: rows failing, by partition date, on a logarithmic scale. Line: rows checked."),
    Column("last checked", "When the last of its partitions was checked.", "checked_at"),
)  # fmt: skip
_CHECK_COLUMNS: Final = (
    Column("state", "Worst state on any partition."),
    Column("check", "Its id in the contract, the column it is about, and what a failure is.", "check_id"),
    Column("severity", "How bad a failure is.", "severity"),
    Column.number("partitions failed", "Partitions where rows that fail are still in the table.", "partitions_failed",
                  "{partition}"),
    Column.number("not computed", "Partitions where it could not be computed.", "partitions_errored", "{partition}"),
    Column.number("of", "Partitions with a result.", "partitions", "{partition}"),
    Column.number("rows failed", "Summed over partitions, those in quarantine included.", "rows_failed", "{row}"),
    Column.number("rows checked", "Summed over partitions; NULL passes unchecked.", "rows_checked", "{row}"),
    Column.number("quarantined", "Rows moved to the table rejects.", "rows_quarantined", "{row}"),
    Column("history", "Bars: rows failing, by partition date, on a logarithmic scale. Line: rows checked."),
)  # fmt: skip
_PARTITION_COLUMNS: Final = (
    Column("state", "Worst state of a check on it."),
    Column("partition (UTC date)", "Date of its rows.", "partition_date"),
    Column.number("failing", "Checks of severity critical or error that fail.", "checks_failing", "{check}"),
    Column.number("not computed", "Checks that could not be computed.", "checks_errored", "{check}"),
    Column.number("warnings", "Checks of severity warning or info that fail.", "checks_warning", "{check}"),
    Column.number("rows checked", "Most rows that a check was held against.", "rows_checked", "{row}"),
    Column.number("rows failing", "Still in the table, summed over checks.", "rows_failed", "{row}"),
    Column.number("quarantined", "Rows moved to the table rejects.", "rows_quarantined", "{row}"),
    Column.number("version", "Delta version of the table that was checked.", "table_version"),
    Column("checked", "When it was checked last.", "checked_at"),
)  # fmt: skip


def section(quality: QualityState) -> Section:
    """Return the quality pages: one of all tables, one of incidents, and one per table."""
    skipped = sum(check.state == SKIPPED for table in quality.tables for check in table.checks)
    headline = verdict(quality.state, quality.totals, skipped)
    names = frozenset(table.table for table in quality.tables)
    links = {name: _href(name) for name in sorted(names)}
    incidents = incidents_page(quality.overview, links, _ABOVE)
    tables = (_table_page(table, names, quality.version) for table in quality.tables)
    entries = [Entry(incidents.title, "page", incidents_state(quality.overview), incidents.path)]
    entries += [Entry(table.table, f"{table.kind} table", table.state, _href(table.table)) for table in quality.tables]
    entries += [
        Entry(f"{check.table} · {check.check_id}", "check", check.state, f"{_href(check.table)}#{_anchor(check)}")
        for table in quality.tables
        for check in table.checks
    ]
    pages = (_first_page(quality, headline), incidents, *tables)
    return Section(SECTION, "Quality", quality.state, headline, HOME, pages, tuple(entries))


def verdict(state: str, totals: Totals, skipped: int) -> str:
    """Return the state in a sentence; checks that were skipped on all partitions had no values."""
    facts = [
        *([f"{counted(totals.checks_failing, 'check')} failing"] if totals.checks_failing else []),
        *([f"{totals.checks_errored:,} could not be computed"] if totals.checks_errored else []),
        *([counted(totals.checks_warning, "warning")] if totals.checks_warning else []),
        *([f"{counted(totals.partitions_unchecked, 'partition')} not checked"] if totals.partitions_unchecked else []),
    ]
    if facts:
        return ", ".join(facts)
    if state not in {PASSED, QUARANTINED}:
        return "Nothing was checked yet"
    if skipped:
        return f"{counted(totals.checks - skipped, 'check')} passed, {skipped:,} had no values to judge"
    return f"All {totals.checks:,} checks pass"


def _first_page(quality: QualityState, headline: str) -> Page:
    facts = [quality.lake, quality.version, quality.state, quality.totals, quality.overview, *quality.tables]
    return Page(HOME, "Data quality", "quality.html", partial(_first_parts, quality, headline), _digest(facts))


def _first_parts(quality: QualityState, headline: str) -> dict[str, Any]:
    note = versions_text({RESULTS: quality.version})
    bad = [check for table in quality.tables for check in table.checks if check.state in OPEN]
    first = list(islice(_worst_first(bad), _MOST_FIRST))
    partitions = (partition for table in quality.tables for partition in table.partitions)
    counts = Counter((partition.day, partition.state) for partition in partitions if partition.state != PASSED)
    shown = [state for state in STATES if any(state == other for _, other in counts)]
    values = [{"date": day, "state": state, "count": count} for (day, state), count in sorted(counts.items())]
    chart = Chart(
        "states", "Partitions that did not pass, by date",
        "Partitions of all tables by date and state; the pages of tables list the same.",
        stacked_by_date(values, shown, "partitions"),
    )  # fmt: skip
    overview = quality.overview
    return {
        "quality": quality,
        "headline": headline,
        "figures": _figures(quality.totals, Source("totals", quality.sources.totals, note)),
        "first": first,
        "more": len(bad) - len(first),
        "sparklines": {table.table: _of_table(table) for table in quality.tables},
        "table": FactTable("Tables, worst first", Source("tables", quality.by_table, note), _TABLE_COLUMNS, ["table"]),
        "charts": [*([chart] if values else []), *trend_charts(overview)],
        "incidents": (
            INCIDENTS_PATH, incidents_headline(overview), incidents_state(overview),
        ),
        "href": _href,
        "anchor": _anchor,
    }  # fmt: skip


def _worst_first(checks: Iterable[CheckState]) -> Iterator[CheckState]:
    """Yield checks worst first, a few of each table, so that one table does not hide the others."""
    seen: Counter[str] = Counter()
    for check in sorted(checks, key=lambda check: (STATES.index(check.state), -(check.rows_failed or 0))):
        seen[check.table] += 1
        if seen[check.table] <= _MOST_OF_A_TABLE:
            yield check


def _table_page(table: TableState, tables: frozenset[str], version: int | None) -> Page:
    linked = tables.intersection({*table.made_from, *table.used_by})
    parts = partial(_table_parts, table, linked, version)
    digest = _digest([table, *sorted(linked)])
    return Page(_href(table.table), table.table, "quality_table.html", parts, digest, _ABOVE)


def _table_parts(table: TableState, linked: frozenset[str], version: int | None) -> dict[str, Any]:
    note = versions_text({RESULTS: version})
    bad = [check for check in table.checks if check.state not in {PASSED, SKIPPED}][:_MOST_DRAWN]
    values = [
        {"date": point.day, "row": _name(check), "state": point.state, "failed": point.rows_failed,
         "checked": point.rows_checked}
        for check in bad
        for point in check.history
        if point.state not in {PASSED, SKIPPED}
    ]  # fmt: skip
    states = sorted({str(value["state"]) for value in values}, key=STATES.index)
    days = [table.partitions[-1].day, table.partitions[0].day]
    chart = Chart(
        "history", f"Checks that did not pass, by date, the worst {_MOST_DRAWN}",
        "Where a check did not pass, by date; the table below lists the same.",
        states_by_date(values, states, list(map(_name, bad)), days), is_wide=True,
    )  # fmt: skip
    checks = Source("checks", table.sources.checks, note)
    partitions = Source("partitions", table.sources.partitions, note)
    return {
        "one": table,
        "headline": verdict(table.state, table.totals, sum(check.state == SKIPPED for check in table.checks)),
        "figures": _figures(table.totals, Source("totals", table.sources.totals, note)),
        "sparklines": {_anchor(check): _of_check(check) for check in table.checks},
        "checks": FactTable("Checks, worst first", checks, _CHECK_COLUMNS, ["check_id", "column", "severity"]),
        "partitions": FactTable("Partitions, latest first", partitions, _PARTITION_COLUMNS, ["partition_date"]),
        "charts": [chart] if values else [],
        "open": OPEN,
        "tables": linked,
        "href": _href,
        "anchor": _anchor,
    }


def _figures(totals: Totals, source: Source) -> list[Figure]:
    row, unknown = asdict(totals), totals.partitions_unchecked
    log = Source("log", "", "ranklake check tells the same: it checks what changed.")
    unchecked = Figure("partitions not checked", unknown, "{partition}", _UNCHECKED, log, "", UNCHECKED * bool(unknown))
    return [*(measure.figure(row, source) for measure in _MEASURES), unchecked]


WIDTH: Final = 180
HEIGHT: Final = 28


@dataclass(frozen=True, slots=True)
class Bars:
    """Marks of one state, as an SVG path."""

    state: str
    path: str


@dataclass(frozen=True, slots=True)
class Sparkline:
    """Bars for what failed, a line for what was checked; `label` is the same as text."""

    label: str
    line: str
    bars: tuple[Bars, ...]
    width: int = WIDTH
    height: int = HEIGHT


def sparkline(label: str, points: Sequence[tuple[str, int | None, int | None]]) -> Sparkline:
    """Return a sparkline of (state, rows checked, rows failed) per date.

    Heights are logarithms of failed rows, so that few are visible beside many; a check that could not be computed is a
    full bar. Dates without checked rows are gaps.
    """
    step = WIDTH / max(1, len(points))
    most_checked = max((checked or 0 for _, checked, _ in points), default=0) or 1
    most_failed = log1p(max((failed or 0 for _, _, failed in points), default=0)) or 1.0
    line, bars, pen = [], dict[str, list[str]](), "M"
    for place, (state, checked, failed) in enumerate(points):
        x = _coordinate(step * (place + 0.5))
        if checked is None:
            pen = "M"
        else:
            line.append(f"{pen}{x} {_coordinate(HEIGHT - 2 - (HEIGHT - 6) * checked / most_checked)}")
            pen = "L"
        if state == "errored" or failed:
            share = 1.0 if state == "errored" else log1p(failed or 0) / most_failed
            bars.setdefault(state, []).append(f"M{x} {HEIGHT}v-{_coordinate(4 + (HEIGHT - 6) * share)}")
    return Sparkline(label, "".join(line), tuple(Bars(state, "".join(paths)) for state, paths in sorted(bars.items())))


def _coordinate(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _of_check(check: CheckState) -> Sparkline:
    return _history([(point.state, point.rows_checked, point.rows_failed) for point in check.history])


def _of_table(table: TableState) -> Sparkline:
    days = sorted(table.partitions, key=lambda partition: partition.day)
    return _history([(day.state, day.rows_checked, day.rows_failed) for day in days])


def _history(points: Sequence[tuple[str, int | None, int | None]]) -> Sparkline:
    failed = [count for _, _, count in points if count]
    label = f"rows failed on {len(failed)} of {counted(len(points), 'date')}, at most {max(failed, default=0):,}"
    return sparkline(label, points)


def _name(check: CheckState) -> str:
    return check.check_id if check.column is None or ":" in check.check_id else f"{check.check_id} ({check.column})"


def _href(table: str) -> str:
    return f"{SECTION}/{table_file(table)}"


def _anchor(check: CheckState) -> str:
    identity = f"{check.check_id} {check.column or ''} {check.severity}"
    return f"check-{hashlib.sha256(identity.encode()).hexdigest()[:10]}"


def _digest(facts: Iterable[Any]) -> str:
    return hashlib.sha256("\n".join(map(repr, facts)).encode("utf-8", "surrogatepass")).hexdigest()


INCIDENTS_PATH: Final = "quality/incidents.html"
TITLE: Final = "Failures of checks, and holds"
_DAYS: Final = "Counted are partitions that still exist, by the last check of each."
_COUNTS: Final = (
    Measure("open_alarms", "open, critical or error", "{incident}",
            "Checks of severity critical or error that fail, or could not be computed, on some date now.",
            state=FAILING),
    Measure("open_others", "open, warning or info", "{incident}", "Checks of severity warning or info likewise.",
            state=WARNING),
    Measure("closed", "closed", "{incident}", "Incidents that are over: their check stands on no date any more."),
    Measure("flaps", "opened again", "{reopening}",
            "Closings after which the same check failed again within a day: that is one incident, which flaps."),
)  # fmt: skip
_HELD_COUNTS: Final = (
    Measure("partitions", "held back", "{partition}",
            "Partitions that checks with on_fail: hold keep back from rollups, and nobody released.", state=ERRORED),
    Measure("rows_failed", "rows failing in them", "{row}",
            "Summed over these partitions: the most that one check of each found."),
)  # fmt: skip
_INCIDENTS: Final = (
    Column("table", "Table that was checked.", "table"),
    Column("state", "Open while the check stands on any date.", "state"),
    Column("check", "Its id in the contract.", "check_id"),
    Column("severity", "The worst that it had meanwhile.", "severity"),
    Column.moment("opened", "When a check first found it.", "opened"),
    Column.number("partitions", "Dates that were hit.", "partitions", "{partition}"),
    Column.moment("latest", "The latest of them.", "last_partition"),
    Column.number("rows failed", "The most that failed at once, over the dates that were hit.", "rows_failed", "{row}"),
    Column("what", "What was said last; no value of a classified column.", "message"),
    Column.moment("closed", "When a check found that it is over.", "closed"),
    Column.number("flaps", "How often it closed and opened again.", "flaps", "{reopening}"),
    Column("column", "The column that it is about.", "column"),
    Column.moment("earliest", "The earliest of the dates that were hit.", "first_partition"),
)  # fmt: skip
_HELD: Final = (
    Column("table", "Table of the partition.", "table"),
    Column.moment("partition (UTC date)", "Date of its rows.", "partition_date"),
    Column("severity", "The worst of the checks that hold it.", "severity"),
    Column("checks", "Those with on_fail: hold that fail.", "checks"),
    Column.number("rows failing", "The most that one of them found.", "rows_failed", "{row}"),
    Column.moment("found", "When they were last found to fail.", "found"),
)


def incidents_page(overview: QualityOverview, links: dict[str, str], above: tuple[tuple[str, str], ...]) -> Page:
    """Return the page; `links` has the pages of tables."""
    answers = (overview.incidents, overview.incident_counts, overview.held, overview.held_counts)
    digest = digest_of((answers, sorted(links)))
    return Page(
        INCIDENTS_PATH, TITLE, "quality_incidents.html", partial(_incidents_parts, overview, links), digest, above
    )


def incidents_state(overview: QualityOverview) -> str:
    """Return the page's state for the search."""
    counts = overview.incident_counts.first_row
    if counts["open_alarms"]:
        return FAILING
    return WARNING if counts["open_others"] or overview.held.rows else PASSED


def incidents_headline(overview: QualityOverview) -> str:
    """Return the page's summary."""
    counts, held = overview.incident_counts.first_row, len(overview.held.rows)
    still = counts["open_alarms"] + counts["open_others"]
    holds = f", {counted(held, 'partition')} held back from rollups" if held else ""
    return f"{counted(still, 'incident')} open{holds}" if still or held else "No incident is open, and nothing is held"


def _incidents_parts(overview: QualityOverview, links: dict[str, str]) -> dict[str, Any]:
    note = "Partitions that an applied release let go on are left out: ranklake quality held tells the same."
    incidents_key = ["table", "check_id", "column", "opened"]
    return {
        "headline": incidents_headline(overview),
        "state": incidents_state(overview),
        "figures": [
            *figures("incident-counts", overview.incident_counts, _COUNTS, _DAYS),
            *figures("held-counts", overview.held_counts, _HELD_COUNTS),
        ],
        "held": answer_table("held", "Held back from rollups", overview.held, ["table", "partition_date"], _HELD,
                             "Nothing is held back.", note, links=links),
        "incidents": answer_table("incidents", "Incidents, open ones first, then the worst", overview.incidents,
                                  incidents_key, _INCIDENTS, "No check ever failed.", _DAYS, links=links,
                                  states={"open": FAILING, "closed": PASSED}),
    }  # fmt: skip


def trend_charts(overview: QualityOverview) -> Iterator[Chart]:
    """Yield the share of passed checks by partition date."""
    values = [{name: row[name] for name in ("date", "passed_ratio")} for row in reversed(overview.trend.rows)]
    spec = lines_by_time(values, {"passed_ratio": "checks that pass"}, "share of checks", PERCENT)
    spec["encoding"]["y"]["scale"] = {"zero": False}
    words = "Share of the checks that had something to judge, all tables together; rows in quarantine fail no more."
    if len(values) > 1:
        yield Chart("trend", "Checks that pass, by date", words, spec, source_of("trend", overview.trend))
