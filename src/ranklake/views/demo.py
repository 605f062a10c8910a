"""The demo's summary on a terminal: the run as `ranklake.views.run` shows any, the ledger, and what to try next."""

from collections.abc import Sequence
from typing import Any, Final

from ranklake.calibration.compare import TIME_RATIO, Comparison
from ranklake.demo.facts import Facts
from ranklake.terminal import width
from ranklake.views.run import run_lines
from ranklake.views.run_causes import path_line


def summary_lines(facts: Facts, comparisons: Sequence[Comparison], command: str) -> list[str]:
    """Return the summary as lines; `command` is what to type before a question to the lake."""
    counted = {rank: f"{count:,}" for rank, count in facts.counted.items()}
    lines = ["", *run_lines(facts.of_run, width(), counted, facts.verified, path_line(facts.cause)), ""]
    lines += [*_reconciled(facts), _checks(facts.checks), *_calibration(comparisons), ""]
    lines += ["try next", *(f'  {command} "{sql}"' for sql in _questions(facts.of_run.run))]
    return lines


def _reconciled(facts: Facts) -> list[str]:
    total = {
        name: sum(getattr(item, name) for item in facts.balances)
        for name in ("recorded", "stored", "quarantined", "sampled_out", "gaps", "in_flight")
    }
    verdict = "the books add up" if facts.books_add_up else "THE BOOKS DO NOT ADD UP"
    fates = " + ".join(f"{total[name]:,} {name.replace('_', ' ')}" for name in total if name != "recorded")
    lines = [f"rows        {total['recorded']:,} recorded = {fates}: {verdict}"]
    lines += [f"            {item.table}: {fault}" for item in facts.balances for fault in item.faults]
    lines.append(f"            steps the trainer finished: {facts.lost} lost, {facts.repeated} twice")
    return lines


_OUTCOMES: Final = {"skipped": "had nothing to judge"}


def _checks(checks: dict[str, Any]) -> str:
    outcomes = (
        ", ".join(f"{count:,} {_OUTCOMES.get(status, status)}" for status, count in checks["checks"].items())
        or "nothing new to check"
    )
    return f"checks      {outcomes}; {checks['quarantined_rows']:,} rows quarantined"


def _calibration(comparisons: Sequence[Comparison]) -> list[str]:
    """Return how far tables are from an experiment whose truth is known, and what they have wrong."""
    right = sum(one.passed for one in comparisons)
    off = max((one.error for one in comparisons if one.tolerance == TIME_RATIO and one.error is not None), default=None)
    durations = "" if off is None else f"; durations off by at most {off:.2%}"
    lines = [f"calibration {right} of {len(comparisons)} claims about an experiment of known truth hold{durations}"]
    wrong = [one for one in comparisons if not one.passed]
    return lines + [f"            WRONG: {one.what}: {one.telemetry} {one.unit}, in truth {one.truth}" for one in wrong]


def _questions(run: str) -> list[str]:
    return [
        "SELECT rank, count(*) n, avg(step_time_s) FROM steps GROUP BY rank",
        f"SELECT step, max_step_time_s, slowest_rank FROM step_rollup WHERE run = '{run}' ORDER BY 2 DESC LIMIT 5",  # noqa: S608
        "SELECT run, status, steps, mfu_ratio, goodput_ratio, straggler_rank FROM run_summary",
        f"SELECT rank, step, severity_text, message FROM logs WHERE run = '{run}' ORDER BY ts",  # noqa: S608
    ]
