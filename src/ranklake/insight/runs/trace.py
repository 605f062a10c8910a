"""The trace of one step of a run: its spans and log lines."""

import hashlib
from dataclasses import dataclass
from typing import Final

from ranklake.errors import RanklakeError
from ranklake.insight.runs import statements
from ranklake.insight.runs.asking import Ask, QueriedFacts

MOST_SPANS: Final = 2_000_000
_MOST_LINES: Final = 100_000
_GREATEST: Final = 2**63


@dataclass(frozen=True, slots=True)
class StepTrace:
    """Spans and log lines of a step.

    Attributes
    ----------
    trace_id
        W3C trace id, 32 hex digits: of the trace in which the run was started, else derived from run, attempt and step.
    spans, logs
        Rows of ``trace.sql`` and ``trace_logs.sql``; if the role does not see log lines, with a reason.
    """

    run: str
    attempt: int
    step: int
    trace_id: str
    spans: QueriedFacts
    logs: QueriedFacts


def made_trace_id(run: str, attempt: int, step: int | None) -> str:
    """Return the trace id of spans recorded without one: derived from run, attempt and step."""
    whole = f"{run}\n{attempt}" if step is None else f"{run}\n{attempt}\n{step}"
    return hashlib.sha256(whole.encode()).hexdigest()[:32]


def step_trace(ask: Ask, run: str, step: int, attempt: int | None = None) -> StepTrace:
    """Return the trace of a step.

    Parameters
    ----------
    run
        Its whole name.
    attempt
        By default the last one that has spans of the step.

    Raises
    ------
    RanklakeError
        There are no spans of it; the error names the nearest steps that have some.
    """
    if not 0 <= step < _GREATEST:
        raise RanklakeError(f"no step has the number {step}", where="--step", hint="name a step from 0 on")
    answer = ask(statements.of_run("traced", run, step=step))
    if answer.reason:
        raise RanklakeError(answer.reason, where="--role", hint="ask whoever keeps the roles for spans")
    rows = [row for row in answer.rows if attempt in {None, row["attempt"]}]
    having = [row["attempt"] for row in rows if row["spans"]]
    if not having:
        of = "" if attempt is None else f" in attempt {attempt}"
        near = sorted({row[name] for row in rows for name in ("before", "after") if row[name] is not None})
        if near:
            nearest = " and ".join(f"{one:,}".replace(",", "") for one in near)
            raise RanklakeError(f"{run} recorded no spans of step {step}{of}", hint=f"nearest that has some: {nearest}")
        hint = "record phases of its steps (run.phase), or import them: ranklake import"
        raise RanklakeError(f"{run} recorded no spans of any step{of}", hint=hint)
    chosen = max(having)
    spans = ask(statements.of_run("trace", run, step=step, attempt=chosen, most=MOST_SPANS))
    recorded = next((row["trace_id"] for row in spans.rows if row.get("trace_id")), None)
    return StepTrace(
        run=run,
        attempt=chosen,
        step=step,
        trace_id=recorded or made_trace_id(run, chosen, step),
        spans=spans,
        logs=ask(statements.of_run("trace_logs", run, step=step, attempt=chosen, most=_MOST_LINES)),
    )
