"""Telemetry of a run for OpenTelemetry: rows of each rank, page by page, and facts of its ranks."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ranklake.insight.runs import statements
from ranklake.insight.runs.asking import Ask, Row
from ranklake.insight.runs.trace import made_trace_id
from ranklake.lake.contracts.json_text import facts_in
from ranklake.lake.contracts.model import Metric
from ranklake.lake.query.literal import literal

SIGNALS: Final[Mapping[str, tuple[str, ...]]] = {
    "traces": ("spans",),
    "metrics": ("steps", "scalars", "distributions"),
    "logs": ("logs",),
}
"""Tables of each signal."""
PAGE_ROWS: Final = 5_000
_MESSAGES: Final = ", message, exception_message, exception_stacktrace"


@dataclass(frozen=True, slots=True)
class RankFacts:
    """The rank that rows of telemetry belong to, and its run.

    Attributes
    ----------
    traceparent
        The run's place in a W3C trace; empty if it is in none.
    """

    run: str
    attempt: int
    rank: int
    job: str = ""
    host: str = ""
    traceparent: str = ""

    def trace_id(self, step: int | None) -> str:
        """Return the trace id of spans without one: that of ``ranklake trace``."""
        return made_trace_id(self.run, self.attempt, step)


@dataclass(frozen=True, slots=True)
class TelemetryPage:
    """Rows of a table, of one rank, in the order of their times."""

    signal: str
    table: str
    rank_facts: RankFacts
    rows: tuple[Row, ...]


@dataclass(slots=True)
class RunTelemetry:
    """The rows of a run, as a role sees them.

    Attributes
    ----------
    metrics
        The registry, for names of metrics in columns of ``steps``.
    has_messages
        Whether to include messages of log lines, which are free text.
    unseen
        Why a table has no rows for the role, by table.
    rows
        Number of rows in pages so far, by table.
    """

    ask: Ask
    run: str
    metrics: Mapping[str, Metric]
    attempt: int | None = None
    has_messages: bool = False
    unseen: dict[str, str] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)

    @property
    def step_columns(self) -> dict[str, Metric]:
        """Metrics by the column of ``steps`` that holds them."""
        held = {name: item for name, item in self.metrics.items() if item.stored_in.startswith("steps.")}
        return {item.stored_in.removeprefix("steps."): item for item in held.values()}

    def pages(self, tables_by_signal: Mapping[str, Sequence[str]]) -> Iterator[TelemetryPage]:
        """Yield pages of rows of some tables."""
        facts_by_rank = self._facts()
        for signal, tables in tables_by_signal.items():
            for table in tables:
                for attempt, rank in self._ranks(table):
                    facts = facts_by_rank.get((attempt, rank)) or self._of(
                        facts_by_rank.get((attempt, None)), attempt, rank
                    )
                    for rows in self._row_pages(table, attempt, rank):
                        self.rows[table] += len(rows)
                        yield TelemetryPage(signal, table, facts, rows)

    def _row_pages(self, table: str, attempt: int, rank: int) -> Iterator[tuple[Row, ...]]:
        """Yield a rank's rows page by page."""
        rows: tuple[Row, ...] = ()
        while not rows or len(rows) == PAGE_ROWS:
            answer = self.ask(self._sql(table, attempt, rank, _after(rows[-1]) if rows else "TRUE"))
            rows = answer.rows
            if answer.reason:
                self.unseen[table] = answer.reason
            if not rows:
                return
            yield rows

    def _sql(self, table: str, attempt: int, rank: int, after: str) -> str:
        parts: dict[str, Any] = {"attempt": attempt, "rank": rank, "most": PAGE_ROWS, "after": after}
        if table == "steps":
            parts["columns"] = ", ".join(("step", *self.step_columns))
        elif table == "logs":
            parts["messages"] = _MESSAGES if self.has_messages else ""
        return statements.of_run(f"otlp_{table}", self.run, **parts)

    def _ranks(self, table: str) -> Iterator[tuple[int, int]]:
        """Yield the attempts and ranks with rows in a table."""
        attempt = "" if self.attempt is None else f" AND attempt = {self.attempt}"
        where = f"run = {literal(self.run)}{attempt}"
        answer = self.ask(
            f"SELECT DISTINCT attempt, rank FROM {table} WHERE {where} ORDER BY attempt, rank"  # noqa: S608
        )
        if answer.reason:
            self.unseen[table] = answer.reason
        for row in answer.rows:
            yield row["attempt"], row["rank"]

    def _facts(self) -> dict[tuple[int, int | None], RankFacts]:
        """Return facts of attempts (under rank None) and ranks, as the role sees them."""
        of = f"run = {literal(self.run)} GROUP BY attempt"
        runs = self.ask(f"SELECT attempt, max(job) AS job, max(labels) AS labels FROM runs WHERE {of}")  # noqa: S608
        known: dict[tuple[int, int | None], RankFacts] = {}
        for row in runs.rows:
            traceparent = facts_in(row["labels"] or "{}").get("traceparent", "")
            known[row["attempt"], None] = RankFacts(
                self.run, row["attempt"], 0, row["job"] or "", traceparent=str(traceparent)
            )
        hosts = self.ask(f"SELECT attempt, rank, max(host) AS host FROM ranks WHERE {of}, rank")  # noqa: S608
        for row in hosts.rows:
            of_attempt = known.get((row["attempt"], None))
            known[row["attempt"], row["rank"]] = self._of(of_attempt, row["attempt"], row["rank"], row["host"] or "")
        return known

    def _of(self, attempt_facts: RankFacts | None, attempt: int, rank: int, host: str = "") -> RankFacts:
        job, traceparent = (attempt_facts.job, attempt_facts.traceparent) if attempt_facts else ("", "")
        return RankFacts(self.run, attempt, rank, job, host, traceparent)


def _after(row: Row) -> str:
    """Return the condition for rows that come after one, in the order of pages."""
    condition = "FALSE"
    for name in ("slot", "segment", "incarnation"):
        condition = f"({name} > {row[name]} OR {name} = {row[name]} AND {condition})"
    ts = f"to_timestamp_micros({row['ts_us']})"
    return f"ts >= {ts} AND (ts > {ts} OR {condition})"
