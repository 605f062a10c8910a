"""Ingestion: what ingests brought in, how long rows took to be queryable, and what could not be read."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from ranklake.insight.runs.asking import Ask, QueriedFacts, sql_text
from ranklake.lake.ingest.status.unreadable import unsound_segments
from ranklake.lake.query.literal import literal
from ranklake.lake.store.writers import REFUSED

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake

_HERE: Final = "ranklake.insight.overview"
WINDOW: Final = timedelta(hours=1)
"""Of whose commits the lag is reckoned."""
_WEEK: Final = timedelta(days=7)
_MOST: Final = 200
_MOST_UNSOUND: Final = 1_000
"""Segments that a query names one by one."""
NOTHING_CAME: Final = "no segment came in the last hour"


def ingest_totals(ask: Ask, now: datetime) -> QueriedFacts:
    """Return what all ingests brought in, in one row, and the first plan that was committed within `WINDOW`."""
    since = (now - WINDOW).astimezone(UTC).replace(tzinfo=None)
    return ask(sql_text(_HERE, "ingest_totals").format(since=since.isoformat(" ", "seconds")))


def ingest_lag(ask: Ask, now: datetime, first_plan: int | None, by: str, most: int = _MOST) -> QueriedFacts:
    """Return quantiles of the time from recorded to queryable, by ``table`` or by ``run``, worst first.

    Parameters
    ----------
    first_plan
        As `ingest_totals` gives it; None where no plan was committed within `WINDOW`.
    """
    if first_plan is None:
        return QueriedFacts("", (), NOTHING_CAME)
    since_date = (now - WINDOW - timedelta(days=1)).date()  # a plan may have been written the day before
    text = sql_text(_HERE, "ingest_lag")
    return ask(text.format(by=by, first_plan=first_plan, since_date=since_date, most=most))


def unread_segments(ask: Ask, now: datetime, which: str) -> QueriedFacts:
    """Return how many segments of the last seven days could not be read, and how many were refused, in one row.

    Parameters
    ----------
    which
        As `unsound_condition` gives it.
    """
    return ask(sql_text(_HERE, "unread").format(refused=REFUSED, since_date=(now - _WEEK).date(), which=which))


def unsound_condition(lake: "Lake") -> str:
    """Return a condition of SQL by which ``segments`` keeps the newest of those that nothing has put right.

    Raises as `ranklake.lake.ingest.status.unreadable.unsound_segments`.
    """
    newest = sorted(unsound_segments(lake), key=lambda row: row["plan"], reverse=True)[:_MOST_UNSOUND]
    digests = sorted({row["sha256"] for row in newest})
    return f"sha256 IN ({', '.join(map(literal, digests))})" if digests else "FALSE"


def stage_costs(ask: Ask, until: datetime) -> QueriedFacts:
    """Return how runs of stages ended in the seven days before a moment, how long they took and what they cost."""
    moment = until.astimezone(UTC).replace(tzinfo=None).isoformat(" ")
    return ask(sql_text(_HERE, "stage_costs").format(since_date=(until - _WEEK).date(), until=moment))


def stage_totals(ask: Ask) -> QueriedFacts:
    """Return runs, time and CPU time by stage and outcome, of all that are kept."""
    return ask(sql_text(_HERE, "stage_totals"))


def table_sizes(ask: Ask) -> QueriedFacts:
    """Return rows, bytes, files and growth of each table, as the catalog last saw them."""
    return ask(sql_text(_HERE, "table_sizes"))


def newest_backups(ask: Ask) -> QueriedFacts:
    """Return by place the point in time that a restore of its newest backup leads to."""
    return ask(sql_text(_HERE, "backups"))


def check_cost(ask: Ask) -> QueriedFacts:
    """Return how many checks were computed so far, and how long they took, in one row."""
    return ask(sql_text(_HERE, "check_cost"))
