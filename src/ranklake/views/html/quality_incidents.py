"""What stands of quality as a whole: the page of incidents and holds, and trend for the first page."""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from ranklake.printable import counted
from ranklake.quality.report.state import ERRORED, FAILING, PASSED, WARNING, QualityOverview
from ranklake.views.html.charts import PERCENT, Chart, lines_by_time
from ranklake.views.html.figures import Column, Measure, answer_table, figures, source_of
from ranklake.views.html.shell import Page, digest_of

PATH: Final = "quality/incidents.html"
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


def page(overview: QualityOverview, links: dict[str, str], above: tuple[tuple[str, str], ...]) -> Page:
    """Return the page; `links` has the pages of tables."""
    answers = (overview.incidents, overview.incident_counts, overview.held, overview.held_counts)
    digest = digest_of((answers, sorted(links)))
    return Page(PATH, TITLE, "quality_incidents.html", partial(_parts, overview, links), digest, above)


def state_of(overview: QualityOverview) -> str:
    """Return the state that the page stands for in a search."""
    counts = overview.incident_counts.first_row
    if counts["open_alarms"]:
        return FAILING
    return WARNING if counts["open_others"] or overview.held.rows else PASSED


def headline(overview: QualityOverview) -> str:
    """Return the page in a sentence."""
    counts, held = overview.incident_counts.first_row, len(overview.held.rows)
    still = counts["open_alarms"] + counts["open_others"]
    holds = f", {counted(held, 'partition')} held back from rollups" if held else ""
    return f"{counted(still, 'incident')} open{holds}" if still or held else "No incident is open, and nothing is held"


def _parts(overview: QualityOverview, links: dict[str, str]) -> dict[str, Any]:
    note = "Partitions that an applied release let go on are left out: ranklake quality held tells the same."
    incidents_key = ["table", "check_id", "column", "opened"]
    return {
        "headline": headline(overview),
        "state": state_of(overview),
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
    """Yield how the share of checks that pass went, by partition date."""
    values = [{name: row[name] for name in ("date", "passed_ratio")} for row in reversed(overview.trend.rows)]
    spec = lines_by_time(values, {"passed_ratio": "checks that pass"}, "share of checks", PERCENT)
    spec["encoding"]["y"]["scale"] = {"zero": False}
    words = "Share of the checks that had something to judge, all tables together; rows in quarantine fail no more."
    if len(values) > 1:
        yield Chart("trend", "Checks that pass, by date", words, spec, source_of("trend", overview.trend))
