"""How quality goes: its trend by date, and its objectives; parts of the page of all tables."""

from collections.abc import Iterator
from typing import Final

from ranklake.quality.report.state import FAILING, PASSED, UNCHECKED, WARNING, Standing
from ranklake.views.html.charts import PERCENT, Chart
from ranklake.views.html.date_charts import lines_by_date
from ranklake.views.html.figures import Column, FactTable, sourced, time_text


def _percent(value: float) -> str:
    """Return a share as people read it."""
    return f"{100 * value:,.4g} %"


_STATES: Final = {"missed": FAILING, "at_risk": WARNING, "met": PASSED, "no_data": UNCHECKED}
_COLUMNS: Final = (
    Column("objective", "Its name.", "slo"),
    Column("status", "missed: the budget is used up; at_risk: three quarters of it; no_data: no date in the window.",
           "status"),
    Column("tables", "Patterns of the tables that it is about.", "subject"),
    Column("promised", "Share of partitions without a failure of severity critical or error, all computed.",
           "objective_ratio", "ratio", is_number=True, text=_percent),
    Column("attained", "good over of.", "attained_ratio", "ratio", is_number=True, text=_percent),
    Column("good", "Such partitions in the window.", "good_count", "{partition}", is_number=True),
    Column("of", "Partitions in the window.", "total_count", "{partition}", is_number=True),
    Column("budget used", "Bad partitions over those that the objective allows; above 100 % it is missed.",
           "budget_used_ratio", "ratio", is_number=True, text=_percent),
    Column("burn rate", "The same of the last seven days alone: above 1 the budget does not last.", "burn_rate", "1",
           is_number=True),
    Column("days", "Length of the window.", "window_days", "d", is_number=True),
    Column("through", "Its last date: that of the last check.", "through", text=time_text),
)  # fmt: skip


def trend_charts(found: Standing) -> Iterator[Chart]:
    """Yield how the share of checks that pass went, by partition date."""
    values = [{name: row[name] for name in ("date", "passed_ratio")} for row in reversed(found.trend.rows)]
    spec = lines_by_date(values, {"passed_ratio": "checks that pass"}, "share of checks", PERCENT)
    spec["encoding"]["y"]["scale"] = {"zero": False}
    if len(values) > 1:
        yield Chart(
            "trend", "Checks that pass, by date",
            "Share of the checks that had something to judge, all tables together; rows in quarantine fail no more.",
            spec, sourced("trend", found.trend),
        )  # fmt: skip


def objectives_table(found: Standing) -> FactTable:
    """Return what was attained of each objective."""
    source = sourced("objectives", found.objectives, "Objectives are [[quality.objectives]] of ranklake.toml.")
    return FactTable(
        "Objectives", source, _COLUMNS, ["slo"], "objectives", found.objectives.rows, {}, _STATES,
        "No objective is configured, or nothing was checked yet.",
    )  # fmt: skip
