"""Lists runs for ``ranklake runs`` and `ranklake.lake.runs`: finds, filters and sorts them by any value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.insight.runs.asking import Ask, Row
from ranklake.insight.runs.find import SORTS, RunConditions, find
from ranklake.insight.runs.values import RunValue, Scalar, ValueCondition, runs_where, sorted_by, values_of_runs


@dataclass(frozen=True, slots=True)
class RunList:
    """Runs in order.

    Attributes
    ----------
    rows
        One row per run, with the columns of ``summary.sql``.
    has_more
        Whether there are more than the limit.
    sql
        Query of the rows, before conditions on values and sorting by them.
    values
        Sort value by run; runs without it are left out.
    """

    rows: Sequence[Row]
    has_more: bool
    sql: str
    values: Mapping[str, Scalar]


def list_runs(
    ask: Ask,
    wanted: RunConditions,
    *,
    sort: str = "newest",
    where: Sequence[str] = (),
    by: str = "",
    is_highest_first: bool = False,
    limit: int | None = None,
) -> RunList:
    """Return the runs that meet all conditions.

    Parameters
    ----------
    sort
        One of `SORTS`.
    where
        Conditions on values, such as ``metric:eval/loss<0.5``.
    by
        A value to sort by instead of `sort`, such as ``metric:eval/loss``.
    limit
        Most runs; None for all.

    Raises `RanklakeError` for an invalid order, value or condition, and as `find` and `values_of_runs`.
    """
    if sort not in SORTS:
        raise RanklakeError(f"runs have no order {sort!r}", where="sort", hint=did_you_mean(sort, SORTS))
    if is_highest_first and not by:
        raise RanklakeError("sorts nothing by itself", where="highest", hint="give a value to sort by: metric:NAME")
    values = values_of_runs(ask, RunValue.parse(by, "by")) if by else {}
    among = runs_where(ask, [ValueCondition.parse(condition, "where") for condition in where])
    result = find(ask, replace(wanted, among=among), sort, None if by or limit is None else limit + 1)
    rows = sorted_by(result.rows, values, is_highest_first=is_highest_first) if by else result.rows
    return RunList(rows[:limit], limit is not None and len(rows) > limit, result.sql, values)
