"""``ranklake demo``."""

import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from ranklake.calibration.compare import FEWEST_STEPS, TIME_RATIO, Comparison, measure
from ranklake.calibration.truth import experiment
from ranklake.capture.recover import recover
from ranklake.commands.options import json_option
from ranklake.config import Config
from ranklake.context import Context
from ranklake.demo.facts import WORLD_SIZE, Facts, gather, launch
from ranklake.flows.embedded import run_pipeline
from ranklake.flows.settings import FlowSettings
from ranklake.pipeline.calls import report_once
from ranklake.printable import counted
from ranklake.terminal import width
from ranklake.views.json_output import show_json
from ranklake.views.run import run_lines
from ranklake.views.run_causes import path_facts, path_line
from ranklake.views.tell import progress_bar, tell


@click.command()
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=Path("demo-lake"), show_default=True,
              help="Folder for the spool, the lake and the trainer's own files.")  # fmt: skip
@click.option("--steps", type=click.IntRange(min=1), default=300, show_default=True, help="Training steps.")
@click.option("--slow-rank", type=click.IntRange(0, WORLD_SIZE - 1), help="Slow this rank down on purpose.")
@click.option("--kill-rank", type=click.IntRange(0, WORLD_SIZE - 1), help="Kill this rank with SIGKILL half-way.")
@json_option
def demo(folder: Path, steps: int, slow_rank: int | None, kill_rank: int | None, *, as_json: bool) -> int:
    """Train a small model on two ranks, record it, and ingest the record into governed tables.

    Everything runs on this machine's CPUs, without external services: torchrun, a Dask cluster and a Prefect server
    start and end with the command. Run it again to add another run to the lake. Exits 1 if a recorded row is missing.
    """
    folder = folder.resolve()
    lake, spool, pages = folder / "lake", folder / "spool", folder / "report"
    say = partial(_say, started=time.monotonic())
    say(f"1/5 training a small GPT on {WORLD_SIZE} ranks, {steps} steps")
    with progress_bar("steps") as progress:
        trained = launch(folder, steps, slow_rank, kill_rank, progress)
    say("2/5 sending what killed ranks left on the local disk")
    adopted = recover(folder / "local", str(spool))
    say(f"    of {counted(adopted.streams, 'rank')}" if adopted.streams else "    nothing: no rank was killed")
    say("3/5 ingest, check, roll up, check the rollups: Prefect flows on a Dask cluster")
    known = folder / "calibration"
    with ThreadPoolExecutor(
        1
    ) as beside:  # its ranks measure themselves by the same clock, so a busy machine is not an error
        truth = beside.submit(experiment, known, FEWEST_STEPS)
        result = run_pipeline(
            FlowSettings(str(lake), str(spool), dask_workers=2), folder / "prefect", lambda stage: say(f"    {stage}")
        )
    say("4/5 asking the lake")
    facts = gather(str(lake), str(spool), trained, result["check"])
    say("    and comparing an experiment whose truth is known with what its tables say")
    comparisons = measure(known, truth.result())
    say("5/5 writing pages")
    written = _pages(lake, pages)
    if as_json:
        calibration = {"run": truth.result().run, "comparisons": [one.plain() for one in comparisons]}
        show_json({**_plain(facts), "report": written, "calibration": calibration})
    else:
        tell(*summary_lines(facts, comparisons, f"{_program()} sql --lake {_path_text(lake)}"))
        if written is not None:
            tell("", f"pages       {_path_text(Path(written))}")
    return 0 if facts.books_add_up and not facts.lost and not facts.repeated else 1


def _pages(lake: Path, out: Path) -> str | None:
    """Write the report; return its first page, or None, with a message, if the chart library is not installed."""
    context = Context.of(Config(), {"lake.uri": str(lake), "report.out": str(out)})
    try:
        result = report_once(context)["published"]
    except ModuleNotFoundError as error:
        if error.name != "vl_convert":
            raise
        tell("no pages: vl_convert is not installed; pip install 'ranklake[report]'", err=True)
        return None
    return f"{result['out']}/index.html"


def _plain(facts: Facts) -> dict[str, object]:
    outcome = {"lost": facts.lost, "repeated": facts.repeated, "books_add_up": facts.books_add_up}
    other = {one.name: getattr(facts, one.name) for one in fields(facts) if one.name not in {"of_run", "cause"}}
    return {**asdict(facts.of_run), "critical_path": path_facts(facts.cause), **outcome, **other}


def _program() -> str:
    """Return how to call ``ranklake`` here: the bare name if it is on the PATH, else its path."""
    here = Path(sys.executable).with_name("ranklake")
    result = shutil.which("ranklake")
    if result and Path(result).resolve() == here.resolve():
        return "ranklake"
    return str(here.relative_to(Path.cwd())) if here.is_relative_to(Path.cwd()) else str(here)


def _path_text(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _say(line: str, *, started: float) -> None:
    print(f"[{time.monotonic() - started:5.1f} s] {line}", file=sys.stderr, flush=True)  # noqa: T201


def summary_lines(facts: Facts, comparisons: Sequence[Comparison], command: str) -> list[str]:
    """Return the summary as lines; `command` is how to call ``ranklake``."""
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
    """Return how far tables differ from an experiment of known truth, and the wrong values."""
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
