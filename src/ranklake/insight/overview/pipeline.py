"""What the pipeline page tells: the stages and how far they are behind, what was ingested, and checks that fail."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from ranklake.insight.overview.ingestion import ingest_lag, ingest_totals, stage_costs
from ranklake.insight.runs.asking import QueriedFacts, asking, sql_text
from ranklake.lake.rollups.registry import ROLLUPS

if TYPE_CHECKING:
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
        The last thing that any stage did; None where none did anything.
    overdue_s
        For how long something may wait for a stage.
    lag, stages, days, plans, checks
        What came in, in one row; a row a stage; by date; the last plans; checks that fail.
    costs
        Of the runs of each stage, in the seven days before `until`.
    lag_by_table, lag_by_run
        From recorded to queryable, of what came in the hour before `until`; the runs that came latest.
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
    read = sorted({table for one in ROLLUPS for table in one.tables})
    stages = ask(
        sql_text(_HERE, "stages").format(
            overdue_s=overdue_s, read_by_rollups=" OR ".join(f"tables LIKE '%\"{name}\":%'" for name in read)
        )
    )
    until: datetime | None = stages.rows[0]["until_ts"]
    nothing = QueriedFacts("", (), "no stage of the pipeline did anything yet")
    is_empty = until is None
    first_plan = None if until is None else ingest_totals(ask, until).first_row["first_plan"]
    month_ago = "" if until is None else f"DATE '{(until - _MONTH).date()}'"
    return PipelineState(
        lake=lake.uri.rstrip("/").rpartition("/")[2],
        until=until,
        overdue_s=overdue_s,
        lag=nothing if is_empty else ask(sql_text(_HERE, "lag")),
        stages=stages,
        days=nothing if is_empty else ask(sql_text(_HERE, "days").format(days=_DAYS)),
        plans=nothing if is_empty else ask(sql_text(_HERE, "plans").format(most=_MOST)),
        costs=nothing if until is None else stage_costs(ask, until),
        lag_by_table=nothing if until is None else ingest_lag(ask, until, first_plan, "table"),
        lag_by_run=nothing if until is None else ingest_lag(ask, until, first_plan, "run", _MOST),
        checks=nothing if is_empty else ask(sql_text(_HERE, "checks").format(month_ago=month_ago)),
    )
