"""The page of incidents of quality, and of partitions that checks hold back."""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from ranklake.quality.report.state import ERRORED, FAILING, PASSED, WARNING, Standing
from ranklake.views.html.figures import Column, FactTable, Figure, sourced, time_text
from ranklake.views.html.shell import Page, digest_of
from ranklake.views.words import counted

PATH: Final = "quality/incidents.html"
TITLE: Final = "Incidents and holds"
_DAYS: Final = "Counted are partitions that still exist, by the last check of each."
_COUNTS: Final = (
    ("open_alarms", "open, critical or error", FAILING, "{incident}",
     "Checks of severity critical or error that fail, or could not be computed, on some date now."),
    ("open_others", "open, warning or info", WARNING, "{incident}", "Checks of severity warning or info likewise."),
    ("closed", "closed", "", "{incident}", "Incidents that are over: their check stands on no date any more."),
    ("flaps", "opened again", "", "{reopening}",
     "Closings after which the same check failed again within a day: that is one incident, which flaps."),
)  # fmt: skip
_INCIDENTS: Final = (
    Column("table", "Table that was checked.", "table"),
    Column("state", "Open while the check stands on any date.", "state"),
    Column("check", "Its id in the contract.", "check_id"),
    Column("severity", "The worst that it had meanwhile.", "severity"),
    Column("opened", "When a check first found it.", "opened", text=time_text),
    Column("partitions", "Dates that were hit.", "partitions", "{partition}", is_number=True),
    Column("latest", "The latest of them.", "last_partition", text=time_text),
    Column("rows failed", "The most that failed at once, over the dates that were hit.", "rows_failed", "{row}",
           is_number=True),
    Column("what", "What was said last; no value of a classified column.", "message"),
    Column("closed", "When a check found that it is over.", "closed", text=time_text),
    Column("flaps", "How often it closed and opened again.", "flaps", "{reopening}", is_number=True),
    Column("column", "The column that it is about.", "column"),
    Column("earliest", "The earliest of the dates that were hit.", "first_partition", text=time_text),
)  # fmt: skip
_HELD: Final = (
    Column("table", "Table of the partition.", "table"),
    Column("partition (UTC date)", "Date of its rows.", "partition_date", text=time_text),
    Column("severity", "The worst of the checks that hold it.", "severity"),
    Column("checks", "Those with on_fail: hold that fail.", "checks"),
    Column("rows failing", "The most that one of them found.", "rows_failed", "{row}", is_number=True),
    Column("found", "When they were last found to fail.", "found", text=time_text),
)


def page(found: Standing, links: dict[str, str], above: tuple[tuple[str, str], ...]) -> Page:
    """Return the page; `links` has the pages of tables."""
    told = (found.incidents, found.incident_counts, found.held, found.held_counts, sorted(links))
    digest = digest_of(told)
    return Page(PATH, TITLE, "quality_incidents.html", partial(_facts, found, links), digest, above)


def state_of(found: Standing) -> str:
    """Return the state that the page stands for in a search."""
    counts = found.incident_counts.one
    if counts["open_alarms"]:
        return FAILING
    return WARNING if counts["open_others"] or found.held.rows else PASSED


def headline(found: Standing) -> str:
    """Return the page in a sentence."""
    counts = found.incident_counts.one
    still = counts["open_alarms"] + counts["open_others"]
    held = f", {counted(len(found.held.rows), 'partition')} held back from rollups" if found.held.rows else ""
    return f"{counted(still, 'incident')} open{held}" if still or held else "No incident is open, and nothing is held"


def _facts(found: Standing, links: dict[str, str]) -> dict[str, Any]:
    badges = {"open": FAILING, "closed": PASSED}
    return {
        "headline": headline(found),
        "state": state_of(found),
        "figures": list(_figures(found)),
        "held": _held(found, links),
        "incidents": FactTable(
            "Incidents, open ones first, then the worst", sourced("incidents", found.incidents, _DAYS), _INCIDENTS,
            ["table", "check_id", "column", "opened"], "incidents", found.incidents.rows, links, badges,
            "No check ever failed.",
        ),
    }  # fmt: skip


def _held(found: Standing, links: dict[str, str]) -> FactTable:
    note = "Partitions that an applied release let go on are left out: ranklake quality held tells the same."
    return FactTable(
        "Held back from rollups", sourced("held", found.held, note), _HELD, ["table", "partition_date"], "held",
        found.held.rows, links, empty="Nothing is held back.",
    )  # fmt: skip


def _figures(found: Standing) -> Iterator[Figure]:
    counts, source = found.incident_counts.one, sourced("incident-counts", found.incident_counts, _DAYS)
    for name, label, state, unit, definition in _COUNTS:
        yield Figure(label, counts[name], unit, definition, source, name, state if counts[name] else "")
    held, source = found.held_counts.one, sourced("held-counts", found.held_counts)
    said = "Partitions that checks with on_fail: hold keep back from rollups, and nobody released."
    yield Figure(
        "held back", held["partitions"], "{partition}", said, source, "partitions", ERRORED if found.held.rows else ""
    )
    more = "Summed over these partitions: the most that one check of each found."
    yield Figure("rows failing in them", held["rows_failed"], "{row}", more, source, "rows_failed")
