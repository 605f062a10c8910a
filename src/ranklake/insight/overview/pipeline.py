"""Facts of the pages of the pipeline (stages, lag, ingests, checks), of serving (requests, drift), of the catalog."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from ranklake.insight.runs.asking import Ask, QueriedFacts, Row, asking, sql_text
from ranklake.lake.ingest.status.reconciliation import unsound_segments
from ranklake.lake.query.literal import literal
from ranklake.lake.rollups.registry import ROLLUPS
from ranklake.lake.store.writers import REFUSED

if TYPE_CHECKING:
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake

_HERE: Final = "ranklake.insight.overview"
_MONTH: Final = timedelta(days=31)
_MOST: Final = 50
_DAYS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineState:
    """The pipeline as its own tables report it.

    Attributes
    ----------
    lake
        Last part of its location.
    until
        Time of the last write of any stage; None if no stage wrote yet.
    overdue_s
        How long input may wait for a stage before the stage is overdue.
    lag, stages, days, plans, checks
        Totals of ingests in one row; one row per stage; one row per date; the latest plans; failing checks.
    costs
        Durations and costs of each stage's runs in the seven days before `until`.
    lag_by_table, lag_by_run
        Time from recorded to queryable, of segments that were ingested in the hour before `until`, slowest first.
    """

    lake: str
    until: datetime | None
    overdue_s: float
    lag: QueriedFacts
    stages: QueriedFacts
    days: QueriedFacts
    plans: QueriedFacts
    checks: QueriedFacts
    costs: QueriedFacts
    lag_by_table: QueriedFacts
    lag_by_run: QueriedFacts


def pipeline_state(lake: "Lake", overdue_s: float) -> PipelineState:
    """Return the state of a lake's pipeline. Raises what queries raise."""
    ask = asking(lake)
    rollup_inputs = sorted({table for rollup in ROLLUPS for table in rollup.tables})
    stages = ask(
        sql_text(_HERE, "stages").format(
            overdue_s=overdue_s, read_by_rollups=" OR ".join(f"tables LIKE '%\"{name}\":%'" for name in rollup_inputs)
        )
    )
    until: datetime | None = stages.rows[0]["until_ts"]
    no_facts = QueriedFacts("", (), "no stage of the pipeline did anything yet")
    is_empty = until is None
    first_plan = None if until is None else ingest_totals(ask, until).first_row["first_plan"]
    month_ago = "" if until is None else f"DATE '{(until - _MONTH).date()}'"
    return PipelineState(
        lake=lake.uri.rstrip("/").rpartition("/")[2],
        until=until,
        overdue_s=overdue_s,
        lag=no_facts if is_empty else ask(sql_text(_HERE, "lag")),
        stages=stages,
        days=no_facts if is_empty else ask(sql_text(_HERE, "days").format(days=_DAYS)),
        plans=no_facts if is_empty else ask(sql_text(_HERE, "plans").format(most=_MOST)),
        costs=no_facts if until is None else stage_costs(ask, until),
        lag_by_table=no_facts if until is None else ingest_lag(ask, until, first_plan, "table"),
        lag_by_run=no_facts if until is None else ingest_lag(ask, until, first_plan, "run", _MOST),
        checks=no_facts if is_empty else ask(sql_text(_HERE, "checks").format(month_ago=month_ago)),
    )


DAYS: Final = 7
_MOST_STATISTICS: Final = 100


@dataclass(frozen=True, slots=True)
class ServingState:
    """Served models over the `DAYS` days before the last request.

    Attributes
    ----------
    lake
        Last part of its location.
    until
        Start of the last hour with a request; None where no request was recorded.
    totals, models, hours, drift
        Totals in one row; one row per model and version; one per hour; the last date's drift statistics, drifted first.
    """

    lake: str
    until: datetime | None
    totals: QueriedFacts
    models: QueriedFacts
    hours: QueriedFacts
    drift: QueriedFacts


def serving_state(lake: "Lake", role: "Role | None" = None) -> ServingState:
    """Return the state of served models. Raises what queries raise.

    Raises also `ranklake.insight.runs.asking.UnseenError`, for a role that does not see what it is computed from.
    """
    ask = asking(lake, role)
    name = lake.uri.rstrip("/").rpartition("/")[2]
    until: datetime | None = ask(sql_text(_HERE, "serving_until")).seen().first_row["until"]
    if until is None:
        no_facts = QueriedFacts("", (), "no request to a served model was recorded yet")
        return ServingState(name, None, no_facts, no_facts, no_facts, no_facts)
    dates = f"date BETWEEN DATE '{(until - timedelta(days=DAYS)).date()}' AND DATE '{until.date()}'"
    window = f"hour > {literal(until - timedelta(days=DAYS))} AND hour <= {literal(until)} AND {dates}"
    names = ("serving_totals", "serving_models", "serving_hours", "serving_drift")
    answers = (
        ask(sql_text(_HERE, item).format(window=window, dates=dates, most=_MOST_STATISTICS)).seen() for item in names
    )
    return ServingState(name, until, *answers)


WINDOW: Final = timedelta(hours=1)
"""Ingests committed within this time count for the lag."""
_WEEK: Final = timedelta(days=7)
_MOST_TABLES: Final = 200
_MOST_UNSOUND: Final = 1_000
"""Most segments that a condition lists."""
NO_SEGMENTS: Final = "no segment came in the last hour"


def ingest_totals(ask: Ask, now: datetime) -> QueriedFacts:
    """Return totals of all ingests in one row, and the first plan that was committed within `WINDOW`."""
    since = (now - WINDOW).astimezone(UTC).replace(tzinfo=None)
    return ask(sql_text(_HERE, "ingest_totals").format(since=since.isoformat(" ", "seconds")))


def ingest_lag(ask: Ask, now: datetime, first_plan: int | None, by: str, most: int = _MOST_TABLES) -> QueriedFacts:
    """Return quantiles of the time from recorded to queryable, by ``table`` or by ``run``, worst first.

    Parameters
    ----------
    first_plan
        As `ingest_totals` gives it; None where no plan was committed within `WINDOW`.
    """
    if first_plan is None:
        return QueriedFacts("", (), NO_SEGMENTS)
    since_date = (now - WINDOW - timedelta(days=1)).date()  # a plan may have been written the day before
    text = sql_text(_HERE, "ingest_lag")
    return ask(text.format(by=by, first_plan=first_plan, since_date=since_date, most=most))


def unread_segments(ask: Ask, now: datetime, condition: str) -> QueriedFacts:
    """Count the segments of the last seven days that could not be read, and those that were refused, in one row.

    Parameters
    ----------
    condition
        As `unsound_condition` gives it.
    """
    return ask(sql_text(_HERE, "unread").format(refused=REFUSED, since_date=(now - _WEEK).date(), condition=condition))


def unsound_condition(lake: "Lake") -> str:
    """Return a condition for rows of ``segments``: the newest unreadable and refused ones that are not repaired yet.

    Raises as `ranklake.lake.ingest.status.reconciliation.unsound_segments`.
    """
    newest = sorted(unsound_segments(lake), key=lambda row: row["plan"], reverse=True)[:_MOST_UNSOUND]
    digests = sorted({row["sha256"] for row in newest})
    return f"sha256 IN ({', '.join(map(literal, digests))})" if digests else "FALSE"


def stage_costs(ask: Ask, until: datetime) -> QueriedFacts:
    """Return outcomes, durations and costs of the stages' runs in the seven days before `until`."""
    moment = until.astimezone(UTC).replace(tzinfo=None).isoformat(" ")
    return ask(sql_text(_HERE, "stage_costs").format(since_date=(until - _WEEK).date(), until=moment))


def stage_totals(ask: Ask) -> QueriedFacts:
    """Return runs, time and CPU time by stage and outcome, over all runs in the lake."""
    return ask(sql_text(_HERE, "stage_totals"))


def table_sizes(ask: Ask) -> QueriedFacts:
    """Return rows, bytes, files and growth of each table, as of the catalog's last refresh."""
    return ask(sql_text(_HERE, "table_sizes"))


def newest_backups(ask: Ask) -> QueriedFacts:
    """Return, for each place, the time of the data in its newest backup."""
    return ask(sql_text(_HERE, "backups"))


def check_cost(ask: Ask) -> QueriedFacts:
    """Return the number and the duration of all checks computed so far, in one row."""
    return ask(sql_text(_HERE, "check_cost"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogState:
    """The catalog as it was last refreshed.

    Attributes
    ----------
    lake
        Last part of its location.
    sums, tables, metrics
        Totals in one row; one row per table; one per metric. No rows before the catalog's first refresh.
    columns
        Columns of each table, in the table's order.
    flows
        Pairs of an input table and a table computed from it.
    """

    lake: str
    sums: QueriedFacts
    tables: QueriedFacts
    columns: Mapping[str, QueriedFacts]
    metrics: QueriedFacts
    flows: QueriedFacts


def catalog_state(lake: "Lake") -> CatalogState:
    """Return the state of a lake's catalog. Raises what queries raise."""
    ask = asking(lake)
    columns = ask(sql_text(_HERE, "columns").format(table_condition=""))
    rows_by_table: defaultdict[str, list[Row]] = defaultdict(list)
    for row in columns.rows:
        rows_by_table[row["table"]].append(row)
    return CatalogState(
        lake=lake.uri.rstrip("/").rpartition("/")[2],
        sums=ask(sql_text(_HERE, "sums")),
        tables=ask(sql_text(_HERE, "tables")),
        columns={
            name: replace(columns, sql=_columns_of(name), rows=tuple(rows)) for name, rows in rows_by_table.items()
        },
        metrics=ask(sql_text(_HERE, "metrics")),
        flows=ask(sql_text(_HERE, "flows")),
    )


def _columns_of(table: str) -> str:
    """Return the SQL for one table's columns, which its page shows as the source. One query fetches all tables'."""
    return sql_text(_HERE, "columns").format(table_condition=f' AND "table" = {literal(table)}')
