"""Attainment of objectives: error budget, burn rates, and the alerts of the Google SRE workbook.

An objective of 99 % allows one bad event in a hundred: that is its error budget. The burn rate is the share of bad
events over the share that is allowed; at 1 the budget is just used up by the end of the window. An alert fires while
the rate is above a limit both in a long window, so that it matters, and in a short one, so that it ends when the
trouble does (The Site Reliability Workbook, chapter 5, "Multiwindow, Multi-Burn-Rate Alerts").
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from ranklake.errors import RanklakeError
from ranklake.insight.slo.document import Objective, ServiceLevelObjective
from ranklake.lake.query.literal import literal

if TYPE_CHECKING:
    from ranklake.insight.runs.asking import Ask

MOST_LOSSES: Final = 20
"""Most rows of losses of one budget."""
MOST_SUBJECTS: Final = 1_000
"""Most subjects of one objective, those with the most bad events."""
AT_RISK: Final = 0.75
"""Share of the budget from which an objective is at risk."""
_ROUNDING: Final = 1e-9
"""Tolerance of floats: an exactly used budget is not missed, though 1 - 0.9 is less than 0.1."""
_OPERATORS: Final = {"lte": "<=", "gte": ">=", "lt": "<", "gt": ">"}


@dataclass(frozen=True, slots=True)
class BurnAlert:
    """An alert on the burn rate: its limit, the two windows in seconds, and whether it is a page."""

    rate: float
    long_s: int
    short_s: int
    kind: Literal["page", "ticket"]


def burn_alerts(fast_page: float = 14.4, slow_page: float = 6.0, ticket: float = 1.0) -> tuple[BurnAlert, ...]:
    """Return the alerts at these burn rates; by default those of the workbook.

    Of a 30-day budget they fire when 2 % is used in an hour, 5 % in six hours, 10 % in three days.
    """
    return (
        BurnAlert(fast_page, 3600, 300, "page"),
        BurnAlert(slow_page, 6 * 3600, 1800, "page"),
        BurnAlert(ticket, 3 * 86_400, 6 * 3600, "ticket"),
    )


BURN_ALERTS: Final = burn_alerts()


@dataclass(frozen=True, slots=True)
class SloStatus:
    """Attainment of an objective for one subject.

    Attributes
    ----------
    slo, subject
        Name of the objective, and its subject, such as a run or a pool; empty for all.
    window_end_ts, window_s
        End and length of the window.
    objective_ratio
        Target share of good events.
    good_count, total_count
        Events, or time slices.
    attained_ratio
        Good events divided by all; None without any.
    budget_used_ratio
        Bad events divided by allowed ones; above 1 the objective is missed. None without events.
    burn_rate
        Burn rate in the alerts' longest window, three days by default; None without events.
    status
        ``met``, ``at_risk``, ``missed``, or ``no_data``.
    alert
        The worst firing alert: ``page``, ``ticket``, or empty.
    owner
        Owner of the objective.
    reason
        Why the attainment is unknown; else empty.
    """

    slo: str
    subject: str
    window_end_ts: datetime
    window_s: int
    objective_ratio: float
    good_count: float
    total_count: float
    attained_ratio: float | None
    budget_used_ratio: float | None
    burn_rate: float | None
    status: str
    alert: str
    owner: str
    reason: str


def evaluate(
    ask: "Ask", slo: ServiceLevelObjective, now: datetime, alerts: Sequence[BurnAlert] = BURN_ALERTS
) -> Iterator[SloStatus]:
    """Yield the attainment of an objective in the window up to `now`, for each subject, the worst first.

    Status ``no_data`` has a reason: the indicator's SQL fails, gives no rows, or more good events than all. These
    errors are not raised, so that one mistake does not hide other objectives.
    """
    for name, objective in slo.objectives.items():
        try:
            rows = ask(indicator_sql(slo, objective, now, alerts)).seen().rows
        except RanklakeError as error:
            yield _unknown(slo, name, objective, now, f"the indicator cannot be computed: {error}")
            continue
        if not rows:
            yield _unknown(slo, name, objective, now, "the indicator gave no events in the window")
        for row in rows:
            yield _status(slo, name, objective, now, row, alerts)


def indicator_sql(
    slo: ServiceLevelObjective, objective: Objective, now: datetime, alerts: Sequence[BurnAlert] = BURN_ALERTS
) -> str:
    """Return SQL of one row per subject: events of the window (``total_0``, ``good_0``) and of each alert's windows."""
    spans = [slo.window_s, *(span for alert in alerts for span in (alert.long_s, alert.short_s))]
    columns = []
    for place, span in enumerate(spans):
        since = f"ts > {literal(now - timedelta(seconds=span))}"
        columns += [f"sum(CASE WHEN {since} THEN {name} END) AS {name}_{place}" for name in ("good", "total")]
    return (
        f"{_window(slo, objective, ', '.join(['subject', *columns]), now)}"
        f"GROUP BY subject\nORDER BY sum(total) - sum(good) DESC, subject LIMIT {MOST_SUBJECTS}"
    )


def losses_sql(slo: ServiceLevelObjective, objective: Objective, now: datetime) -> str:
    """Return SQL of the budget's losses in the window: a row per day and subject with bad events, worst first.

    ``budget_ratio`` is the share of the whole budget, over all subjects, that these events used.
    """
    sums = "CAST(ts AS DATE) AS day, subject, sum(total) - sum(good) AS bad_count, sum(total) AS total_count"
    share = f"bad_count / (sum(total_count) OVER () * {1 - objective.ratio!r}) AS budget_ratio"
    return (
        f"SELECT * FROM (\nSELECT *, {share}\nFROM (\n{_window(slo, objective, sums, now)}GROUP BY 1, 2\n))\n"  # noqa: S608
        f"WHERE bad_count > 0\nORDER BY bad_count DESC, day DESC, subject LIMIT {MOST_LOSSES}\n"
    )


def _window(slo: ServiceLevelObjective, objective: Objective, columns: str, now: datetime) -> str:
    """Return a query of columns over the events, or slices of time, in the window up to `now`."""
    parts = [_events(slo, objective)]
    source = "events"
    if objective.slice_s is not None:
        interval = f"INTERVAL '{objective.slice_s} seconds'"
        parts.append(
            f"slices AS (SELECT subject, date_bin({interval}, ts, CAST('1970-01-01' AS TIMESTAMP)) AS ts, "  # noqa: S608
            f"CASE WHEN sum(good) >= {objective.timeSliceTarget} * sum(total) THEN 1.0 ELSE 0.0 END AS good, "
            "1.0 AS total FROM events WHERE total > 0 GROUP BY 1, 2)"
        )
        source = "slices"
    return (
        f"WITH {', '.join(parts)}\nSELECT {columns}\nFROM {source}\n"
        f"WHERE ts > {literal(now - timedelta(seconds=slo.window_s))} AND ts <= {literal(now)}\n"
    )


def _events(slo: ServiceLevelObjective, objective: Objective) -> str:
    """Return the subquery of subject, ts, good and total of each event, without NULLs."""
    metric = slo.spec.indicator.spec
    if metric.thresholdMetric is not None:
        good = f"CASE WHEN value {_OPERATORS[objective.op or 'lte']} {objective.value!r} THEN 1 ELSE 0 END"
        return _select(metric.thresholdMetric.sql, good, "1", "value IS NOT NULL AND NOT isnan(CAST(value AS DOUBLE))")
    ratio = metric.ratioMetric
    assert ratio is not None
    if ratio.raw is not None:
        good = "good" if ratio.rawType == "success" else "total - bad"
        return _select(ratio.raw.sql, good, "total", "total IS NOT NULL")
    counted = ratio.good or ratio.bad
    assert ratio.total is not None
    assert counted is not None
    both = (
        f"SELECT ts, subject, value AS total, 0 AS part FROM (\n{ratio.total.sql}\n)\n"  # noqa: S608 - as the operator wrote it
        f"UNION ALL SELECT ts, subject, 0 AS total, value AS part FROM (\n{counted.sql}\n)"
    )
    return _select(both, "part" if ratio.good else "total - part", "total", "total IS NOT NULL AND part IS NOT NULL")


def _select(sql: str, good: str, total: str, known: str) -> str:
    """Return ``events`` over an indicator's own query."""
    return (
        f"indicator AS (\n{sql}\n), events AS (SELECT coalesce(CAST(subject AS VARCHAR), '') AS subject, "  # noqa: S608
        f"CAST(ts AS TIMESTAMP) AS ts, CAST({good} AS DOUBLE) AS good, CAST({total} AS DOUBLE) AS total "
        f"FROM indicator WHERE {known})"
    )


def _status(
    slo: ServiceLevelObjective,
    name: str,
    objective: Objective,
    now: datetime,
    row: Mapping[str, Any],
    alerts: Sequence[BurnAlert],
) -> SloStatus:
    """Return the attainment from a row of `indicator_sql`."""
    good, total = float(row["good_0"] or 0), float(row["total_0"] or 0)
    subject = str(row["subject"])
    if not (math.isfinite(good) and math.isfinite(total)) or not -_ROUNDING <= good <= total * (1 + _ROUNDING):
        return _unknown(slo, name, objective, now, f"the indicator gives {good:g} good of {total:g} events", subject)
    if total == 0:
        return _unknown(slo, name, objective, now, "the indicator gave no events in the window", subject)
    allowed = 1 - objective.ratio
    rates = [_burn_rate(row, place, allowed) for place in range(1, 2 * len(alerts) + 1)]
    used = (total - good) / (total * allowed)
    return SloStatus(
        *(name, subject, now, slo.window_s, objective.ratio, good, total, good / total, used, rates[-2]),
        status="missed" if used > 1 + _ROUNDING else "at_risk" if used > AT_RISK else "met",
        alert=_alert(rates, alerts),
        owner=slo.owner,
        reason="",
    )


def _burn_rate(row: Mapping[str, Any], place: int, allowed: float) -> float | None:
    """Return the burn rate of one of the alerts' windows; None without events in it."""
    good, total = row[f"good_{place}"] or 0.0, row[f"total_{place}"] or 0.0
    return max(0.0, (total - good) / (total * allowed)) if total > 0 else None


def _alert(rates: Sequence[float | None], alerts: Sequence[BurnAlert]) -> str:
    """Return the kind of the first alert that fires; rates are given for each alert's long and short window."""
    for alert, long, short in zip(alerts, rates[::2], rates[1::2], strict=True):
        if long is not None and short is not None and min(long, short) > alert.rate * (1 + _ROUNDING):
            return alert.kind
    return ""


def _unknown(
    slo: ServiceLevelObjective, name: str, objective: Objective, now: datetime, reason: str, subject: str = ""
) -> SloStatus:
    return SloStatus(
        *(name, subject, now, slo.window_s, objective.ratio, 0.0, 0.0, None, None, None),
        status="no_data",
        alert="",
        owner=slo.owner,
        reason=" ".join(reason.split()),
    )


DAY_S: Final = 86_400.0
_OF_RUN: Final = """SELECT run, failures, preemptions, checkpoint_mean_s AS save_s, checkpoint_interval_s AS interval_s,
  under_way_ns / 1e9 / nullif(failures + preemptions, 0) AS between_interruptions_s
FROM run_goodput"""


def time_between_failures_s(failures_per_1000_node_days: float, nodes: int) -> float:
    """Return the mean time between failures of a number of nodes, in s; infinite if none fails.

    Meta's projection: 6.50 failures per 1,000 node-days, 16,384 GPUs on 2,048 nodes.

    >>> round(time_between_failures_s(6.50, 2048) / 3600, 1)
    1.8
    """
    failures_a_day = failures_per_1000_node_days / 1000 * nodes
    return DAY_S / failures_a_day if failures_a_day else math.inf


def expected_ettr(
    between_failures_s: float,
    checkpoint_interval_s: float,
    restart_s: float,
    queue_s: float = 0.0,
    run_s: float = math.inf,
) -> float:
    """Return the expected effective training time ratio: productive time over time in the queue and scheduled.

    With R productive, U unproductive, Q queued, u a restart's overhead, c the checkpoint interval, f failures per time
    scheduled: f (R + U) failures cost u + c/2 each, the first start u, and each start queues for q; so U = u + f (R +
    U) (u + c/2), Q = q (1 + f (R + U)), ETTR = R / (Q + R + U). The time of writing checkpoints is neglected.

    Parameters
    ----------
    between_failures_s
        Mean time between interruptions of the whole run: failures and preemptions.
    restart_s, queue_s
        Time from a start to the first step, and from an interruption to the next start.
    run_s
        Productive time of the run; if it is long, its first start and wait are negligible.

    Returns
    -------
    float
        From 0, for a run without progress, to 1.

    Examples
    --------
    The paper's case: 16,000 GPUs that save each five minutes, and start within five.

    >>> round(expected_ettr(time_between_failures_s(6.50, 2000), 300, 300), 2)
    0.93
    """
    rate = 1 / between_failures_s
    lost = rate * (restart_s + checkpoint_interval_s / 2)
    if lost >= 1:
        return 0.0
    scheduled = (1 + restart_s / run_s) / (1 - lost)
    return 1 / (scheduled * (1 + rate * queue_s) + queue_s / run_s)


def best_checkpoint_interval_s(save_s: float, between_interruptions_s: float) -> float | None:
    """Return the optimal interval, by Young and Daly; None if saving takes no time, or without interruptions.

    Preemptions lose work like failures: both count as interruptions.

    >>> round(best_checkpoint_interval_s(60, 2 * 3600), 1)
    929.5
    """
    if save_s <= 0 or not math.isfinite(between_interruptions_s):
        return None
    return math.sqrt(2 * save_s * between_interruptions_s)


@dataclass(frozen=True, slots=True)
class RunReliability:
    """Interruptions and checkpoints of a run.

    Attributes
    ----------
    failures, preemptions
        Interruptions of either kind.
    between_interruptions_s
        Running time divided by interruptions; None without any.
    save_s, interval_s
        Mean time of a checkpoint, and between two; None if unknown.
    """

    run: str
    failures: int
    preemptions: int
    between_interruptions_s: float | None
    save_s: float | None
    interval_s: float | None

    @property
    def best_interval_s(self) -> float | None:
        """Its optimal checkpoint interval; None if unknown."""
        if self.between_interruptions_s is None or self.save_s is None:
            return None
        return best_checkpoint_interval_s(self.save_s, self.between_interruptions_s)


def reliability_of(ask: "Ask", run: str) -> RunReliability | None:
    """Return the facts from a run's rollup, by its full name; None if it has none. Raises what queries raise."""
    row = ask(f"{_OF_RUN} WHERE run = {literal(run)}").seen().first_row
    return RunReliability(**row) if row else None
