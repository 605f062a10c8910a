"""What stands of quality as a whole: its trend, objectives, incidents and holds, each with its SQL."""

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.insight.runs.asking import Answered, read_by
from ranklake.lake.query.sql import session
from ranklake.lake.tables.tables import delta_table
from ranklake.quality.incidents import statement as every_incident
from ranklake.quality.objectives import statement as objectives_of
from ranklake.quality.report import statements
from ranklake.quality.report.state import Standing
from ranklake.quality.results import RESULTS

if TYPE_CHECKING:
    from datafusion import SessionContext

    from ranklake.lake.store.store import Lake

Rows = list[dict[str, Any]]
TABLES: Final = (RESULTS, "quality_releases", "ingest_plans")
_ALARMS: Final = ("critical", "error")
_COLUMNS: Final = (
    *("table", "partition_date", "check_id", "column", "severity", "status", "rows_checked", "rows_failed"),
    *("quarantined_rows", "observed", "message", "table_version", "suite", "files_sha256", "on_fail", "ts"),
)
"""Of the results, all that the queries ask for."""


def results_session(lake: "Lake") -> "SessionContext":
    """Return a session in which the results are in memory: a dozen queries decode them once."""
    ctx = session(lake, TABLES)
    names = ", ".join(f'"{name}"' for name in _COLUMNS)
    rows = ctx.sql(f"SELECT {names} FROM {RESULTS}").to_arrow_table()  # noqa: S608 - no foreign text
    ctx.deregister_table(RESULTS)
    empty = pa.RecordBatch.from_pylist([], rows.schema)
    ctx.register_record_batches(RESULTS, [rows.to_batches() or [empty]])
    return ctx


def standing(
    lake: "Lake", ask: Callable[[str], Rows], where: str, tables: Collection[str], checked_at: datetime | None
) -> Standing:
    """Return what stands, of the results that `where` keeps; `checked_at` is the time of the last of them."""
    wanted = lake.config.quality.objectives
    objectives = Answered("")
    if checked_at is not None and wanted:
        text = objectives_of(statements.on_results(where, ""), wanted, tables, checked_at.date())
        objectives = Answered(text, tuple(ask(text)))
    every, held = ask(every_incident(where)), ask(statements.held(where))
    answers = (
        Answered(statements.trend(where), tuple(ask(statements.trend(where)))),
        objectives,
        Answered(statements.incidents(where), tuple(every[: statements.MOST_INCIDENTS])),
        Answered(statements.incident_counts(where), (_counts(every),)),
        Answered(statements.held(where), tuple(held)),
        Answered(statements.held_counts(where), (_held_counts(held),)),
    )
    handles = {name: delta_table(lake, name) for name in TABLES}
    versions = {name: None if handle is None else handle.version() for name, handle in handles.items()}
    return Standing(*(replace(one, versions=read_by(one.sql, versions)) for one in answers))


def _counts(incidents: Rows) -> dict[str, Any]:
    """Return what ``incident_counts.sql`` gives, of rows that are here already."""
    still = [row["severity"] in _ALARMS for row in incidents if row["state"] == "open"]
    return {
        "open_alarms": sum(still),
        "open_others": len(still) - sum(still),
        "closed": len(incidents) - len(still),
        "flaps": sum(row["flaps"] for row in incidents),
    }


def _held_counts(held: Rows) -> dict[str, Any]:
    """Return what ``held_counts.sql`` gives, likewise."""
    return {"partitions": len(held), "rows_failed": sum(row["rows_failed"] for row in held)}
