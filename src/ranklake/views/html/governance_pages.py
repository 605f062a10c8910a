"""The governance page: policies against what is stored, what is due, waits, is held, was erased and went."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from ranklake.retention.report.facts import NO_CATALOG, Governance
from ranklake.views.html.figures import Column, FactTable, Figure, Source, sourced, time_text
from ranklake.views.html.shell import Entry, Page, digest_of
from ranklake.views.html.site import Section
from ranklake.views.words import counted, size_text

SECTION: Final = "governance"
HOME: Final = f"{SECTION}/index.html"
_MOST: Final = 60


def _days(value: int) -> str:
    return f"{value:,} d"


def _about(details: str) -> str:
    """Return what a hold is about, of the details of its row in the audit trail."""
    told = json.loads(details)
    where = "; ".join(f"{key} {', '.join(texts)}" for key, texts in told["where"].items())
    return f"{where}; until {told['until']}"


def _certificate(details: str) -> str:
    """Return the name and the verdict of a certificate, of the details of its row in the audit trail."""
    told = json.loads(details)
    return f"{'nothing left' if told['is_clean'] else 'something left'}: {told['certificate'][:12]}…"


_TABLES: Final = (
    Column("table", "Of those that have rows.", "table"),
    Column("class", "Its retention class, by its contract.", "retention_class"),
    Column("rule", "That decides for rows which no other rule is about.", "rule"),
    Column("period", "How long rows are kept by that rule; none: not deleted by time.", "period_days", "d",
           is_number=True, text=_days),
    Column("longest", "That any row may be kept; none: for ever.", "longest_days", "d", is_number=True, text=_days),
    Column("first date", "Oldest partition with rows.", "first_date", text=time_text),
    Column("oldest", "Age of that partition today.", "oldest_days", "d", is_number=True, text=_days),
    Column("over", "Days by which it is older than any row may be.", "over_days", "d", is_number=True, text=_days),
    Column("rows", "In live files.", "rows", "{row}", is_number=True),
    Column("stored", "Size of the live files.", "stored_bytes", "By", is_number=True, text=size_text),
    Column("a day adds", "Mean of the last seven days.", "daily_growth_bytes", "By", is_number=True, text=size_text),
    Column("owner", "Team that answers for it, by its contract.", "owner"),
)  # fmt: skip
_OWNERS: Final = (
    Column("owner", "Team that answers for tables, by their contracts.", "owner"),
    Column("tables", "With rows.", "tables", "{table}", is_number=True),
    Column("rows", "In live files.", "rows", "{row}", is_number=True),
    Column("stored", "Size of the live files.", "stored_bytes", "By", is_number=True, text=size_text),
    Column("a day adds", "Mean of the last seven days.", "daily_growth_bytes", "By", is_number=True, text=size_text),
)
_TEAMS: Final = (
    Column("team", "As runs recorded it.", "team"),
    Column("runs", "That sent segments.", "runs", "{run}", is_number=True),
    Column("rows", "Stored from its segments, removed ones among them.", "rows_stored", "{row}", is_number=True),
    Column("sent", "Size of its segments as they came in; not what the tables take.", "sent_bytes", "By",
           is_number=True, text=size_text),
)  # fmt: skip
_RULES: Final = (
    Column("rule", "Its name.", "rule"),
    Column("review", "overdue: its date has passed; none: it has no date.", "review_state"),
    Column("by", "Date by which somebody must look at it again.", "review", text=time_text),
    Column("owner", "Who answers for it.", "owner"),
    Column("about", "Rows that it is about.", "about"),
    Column("says", "What happens to them.", "says"),
    Column("budget", "Most bytes that they should take.", "budget_bytes", "By", is_number=True, text=size_text),
    Column("basis", "Legal grounds.", "basis"),
    Column("where", "File and line.", "at"),
)
_DUE: Final = (
    Column("table", "quarantine/…: raw bytes that nothing could read.", "table"),
    Column("partitions", "Of which rows or values would go.", "partitions", "{partition}", is_number=True),
    Column("from", "First date.", "first_date", text=time_text),
    Column("to", "Last date.", "last_date", text=time_text),
    Column("rows", "That would go; 0 where values are masked.", "rows", "{row}", is_number=True),
    Column("bytes", "Of the files, or the rows' share of them.", "bytes", "By", is_number=True, text=size_text),
    Column("rules", "That say so.", "rules"),
)
_WAITING: Final = (
    Column("proposal", "Its name.", "name"),
    Column("kind", "What is proposed.", "noun"),
    Column("since", "When it was proposed, or approved.", "since", text=time_text),
    Column("lacks", "What it waits for.", "lacking"),
    Column("next", "Command that goes on.", "next_step"),
)
_HOLDS: Final = (
    Column("hold", "Its name; 'ranklake retain holds' and the audit trail have its reason.", "hold"),
    Column("about", "What nothing may take, and until when.", "details", text=_about),
    Column("since", "When it was set.", "ts", text=time_text),
)
_ERASURES: Final = (
    Column("erasure", "Its name. Whose data it was stands nowhere.", "erasure"),
    Column("proposed", "When.", "proposed", text=time_text),
    Column("approved", "When.", "approved", text=time_text),
    Column("applied", "When.", "applied", text=time_text),
    Column("rows", "That go, or went.", "rows", "{row}", is_number=True),
    Column("tables", "That have them.", "tables", "{table}", is_number=True),
    Column("certified", "When everything was searched again, last.", "certified", text=time_text),
    Column("certificate", "What the search found, and the digest that names the certificate.", "details",
           text=_certificate),
)  # fmt: skip
_REMOVALS: Final = (
    Column("plan", "The retention plan.", "retention_plan"),
    Column("approved", "When.", "approved", text=time_text),
    Column("applied", "When.", "applied", text=time_text),
    Column("rows", "That went.", "rows", "{row}", is_number=True),
    Column("bytes", "That went.", "bytes", "By", is_number=True, text=size_text),
    Column("files", "That went.", "files", "{file}", is_number=True),
    Column("became", "in grace: it can be cancelled; came back: it was; deleted: for good.", "became"),
    Column("one person", "Whether who approved it applied it, too.", "single_operator"),
    Column("lake plan", "Number in ingest_plans.", "plan", is_number=True),
)
_GRACE: Final = (
    Column("plan", "The retention plan.", "retention_plan"),
    Column("until", "When its grace ends, and upkeep deletes what it took.", "kept_until", text=time_text),
    Column("applied", "When.", "applied", text=time_text),
    Column("rows", "That a cancellation brings back; 0 where values were masked.", "rows", "{row}", is_number=True),
    Column("bytes", "That went.", "bytes", "By", is_number=True, text=size_text),
    Column("files", "That went.", "files", "{file}", is_number=True),
    Column("lake plan", "Number in ingest_plans.", "plan", is_number=True),
)
_ARCHIVES: Final = (
    Column("table", "That the rows were in.", "table"),
    Column("place", "Where they are.", "uri"),
    Column("storage class", "Of the objects; none: the store's own.", "storage_class"),
    Column("ranges", "Archives, each of one date.", "archives", "{archive}", is_number=True),
    Column("from", "First date.", "first_date", text=time_text),
    Column("to", "Last date.", "last_date", text=time_text),
    Column("rows", "That it holds.", "rows", "{row}", is_number=True),
    Column("stored", "Size of its data files.", "bytes", "By", is_number=True, text=size_text),
    Column("approved", "Whether rows come back by an approved proposal alone.", "needs_approval"),
    Column("archived", "When, last.", "archived", text=time_text),
)
_DOWNSAMPLED: Final = (
    Column("table", "That the rows were in.", "table"),
    Column("interval", "Length of the intervals.", "interval_ns", "s", is_number=True,
           text=lambda value: f"{value / 1e9:,g} s"),
    Column("dates", "Of which rows became aggregates.", "dates", "{partition}", is_number=True),
    Column("from", "First date.", "first_date", text=time_text),
    Column("to", "Last date.", "last_date", text=time_text),
    Column("rows", "That went.", "rows", "{row}", is_number=True),
    Column("kept", "Rows of 'downsampled' in their place.", "kept_rows", "{row}", is_number=True),
)  # fmt: skip
_COSTS: Final = (
    Column("table", "Of those that have rows.", "table"),
    Column("rows", "In live files.", "rows", "{row}", is_number=True),
    Column("stored", "Size of the live files.", "bytes", "By", is_number=True, text=size_text),
    Column("a day adds", "Mean of the last 30 whole days; none: too young to tell.", "bytes_per_day", "By",
           is_number=True, text=size_text),
    Column("in a year", "What it will hold after twelve months of 30 days under these policies.", "forecast_bytes",
           "By", is_number=True, text=size_text),
)  # fmt: skip


def section(found: Governance) -> Section:
    """Return the governance page as a section of its own."""
    failing = sum(one.state == "failing" for one in found.needs)
    state = "failing" if failing else "warning" if found.needs else "passed"
    others = len(found.needs) - failing
    told = [f"{counted(failing, 'thing')} to mend"] if failing else []
    told += [f"{counted(others, 'thing')} to look at"] if others else []
    kept = f"; holds keep {counted(found.rows_held, 'row')}" if found.rows_held else ""
    headline = (", ".join(told) or "Policies and what is stored agree, and nothing waits") + kept
    digest = digest_of(found)
    page = Page(HOME, "Governance", "overview.html", partial(_facts, found, headline, state), digest)
    return Section(SECTION, "Governance", state, headline, HOME, (page,), (Entry("Governance", "page", state, HOME),))


def _facts(found: Governance, headline: str, state: str) -> Mapping[str, Any]:
    return {
        "lake": found.lake,
        "headline": headline,
        "state": state,
        "hint": f"as of {found.today}, under the policies {found.policies}",
        "needs": [(one, "") for one in found.needs[:_MOST]],
        "more": max(len(found.needs) - _MOST, 0),
        "figures": list(_figures(found)),
        "charts": [],
        "tables": list(_fact_tables(found)),
    }


def _figures(found: Governance) -> Iterator[Figure]:
    plan = Source("", "", "'ranklake retain plan' takes exactly these rows.")
    rows = found.rows_due
    mark = "warning" if rows else ""
    said = "Rows that are older than their rules allow, and on no hold."
    yield Figure("rows due", rows, "{row}", said, plan, "", mark, found.undecided)
    registers = Source("", "", "The registers and the audit trail tell it; the table below has each.")
    waits = len(found.waiting)
    yield Figure("proposals waiting", waits, "{proposal}", "To approve or to apply.", registers, "",
                 "warning" if waits else "")  # fmt: skip
    trail = Source("", "", "'ranklake retain holds' lists them.")
    yield Figure("legal holds", len(found.holds.rows), "{hold}", "That hold today.", trail, "")
    if found.rows_held:
        said = "Rows that are older than their rules allow, and stay as holds keep them."
        yield Figure("rows held", found.rows_held, "{row}", said, trail, "")
    if found.grace.rows:
        last = max(row["kept_until"] for row in found.grace.rows)
        said = f"In no table any more; 'ranklake retain cancel' brings them back, the last until {last:%Y-%m-%d}."
        rows = sum(row["rows"] for row in found.grace.rows)
        yield Figure("rows in grace", rows, "{row}", said, registers, "")
    files = Source("", "", f"The policies {found.policies}.")
    overdue = found.reviews_overdue
    yield Figure("reviews overdue", overdue, "{rule}", "Rules whose review date has passed.", files, "",
                 "warning" if overdue else "")  # fmt: skip
    total, source = found.totals.one["stored_bytes"], sourced("totals", found.totals)
    why, text = (NO_CATALOG, "") if total is None else ("", size_text(total))
    yield Figure("stored", total, "By", "Live files of all tables.", source, "stored_bytes", "", why, text)


def _fact_tables(found: Governance) -> Iterator[FactTable]:
    states = {"overdue": "warning", "ahead": "passed", "none": "skipped"}
    waits = tuple(asdict(one) for one in found.waiting)
    if found.waiting:
        note = Source("waiting", "", "Each command lists its own: ranklake retain list, erase list, grants list.")
        yield FactTable("Proposals that wait", note, _WAITING, ["name"], "waiting", waits)
    plan = Source("due", "", f"'ranklake retain plan --as-of {found.today}' has the same rows, partition by partition.")
    yield FactTable("What is due", plan, _DUE, ["table"], "due", found.due, empty=found.undecided or "Nothing.")
    yield FactTable("Policies against what is stored", sourced("tables", found.tables), _TABLES, ["table"], "tables",
                    found.tables.rows, empty=NO_CATALOG)  # fmt: skip
    files = Source(
        "rules", "", f"The policies {found.policies}; 'ranklake retain explain TABLE DATE' says which decides."
    )
    yield FactTable("Rules, owners and reviews", files, _RULES, ["rule"], "rules", found.rules, {}, states, "None.")
    yield FactTable("Legal holds", sourced("holds", found.holds), _HOLDS, ["hold"], "holds", found.holds.rows,
                    empty="None holds today.")  # fmt: skip
    yield FactTable("Erasures and their certificates", sourced("erasures", found.erasures), _ERASURES, ["erasure"],
                    "erasures", found.erasures.rows, empty="Nobody asked for one.")  # fmt: skip
    yield FactTable("What can be cancelled", sourced("grace", found.grace), _GRACE, ["retention_plan"], "grace",
                    found.grace.rows, empty="Nothing is in its grace.")  # fmt: skip
    yield FactTable("What retention removed", sourced("removals", found.removals), _REMOVALS, ["retention_plan"],
                    "removals", found.removals.rows, empty="Nothing yet.")  # fmt: skip
    yield FactTable("Archives", sourced("archives", found.archives), _ARCHIVES, ["table", "uri", "storage_class"],
                    "archives", found.archives.rows, empty="Nothing is archived.")  # fmt: skip
    yield FactTable("Downsampled", sourced("downsampled", found.downsampled), _DOWNSAMPLED, ["table", "interval_ns"],
                    "downsampled", found.downsampled.rows, empty="Nothing is downsampled.")  # fmt: skip
    told = Source("costs", "", "'ranklake retain cost --price NUMBER' has the same figures, and what they cost.")
    yield FactTable("Growth, and what it will be", told, _COSTS, ["table"], "costs", found.costs, empty="No rows yet.")
    yield FactTable("Storage by who answers for it", sourced("owners", found.owners), _OWNERS, ["owner"], "owners",
                    found.owners.rows, empty=NO_CATALOG)  # fmt: skip
    yield FactTable("What teams sent", sourced("teams", found.teams), _TEAMS, ["team"], "teams", found.teams.rows,
                    empty="No segment of a run came in yet.")  # fmt: skip
