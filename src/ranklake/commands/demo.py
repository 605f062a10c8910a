"""``ranklake demo``."""

import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path

import click

from ranklake.calibration.compare import FEWEST_STEPS, measure
from ranklake.calibration.truth import experiment
from ranklake.capture.recover import recover
from ranklake.commands.options import json_option
from ranklake.config import Config
from ranklake.context import Context
from ranklake.demo.facts import Facts, gather
from ranklake.demo.launch import WORLD_SIZE, launch
from ranklake.flows.embedded import run_pipeline
from ranklake.flows.settings import FlowSettings
from ranklake.pipeline.calls import report_once
from ranklake.printable import counted
from ranklake.views.demo import summary_lines
from ranklake.views.json_output import show_json
from ranklake.views.progress import progress_bar
from ranklake.views.run_causes import path_facts
from ranklake.views.tell import tell


@click.command()
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=Path("demo-lake"), show_default=True,
              help="Folder for the spool, the lake and the trainer's own files.")  # fmt: skip
@click.option("--steps", type=click.IntRange(min=1), default=300, show_default=True, help="Training steps.")
@click.option("--slow-rank", type=click.IntRange(0, WORLD_SIZE - 1), help="Slow this rank down on purpose.")
@click.option("--kill-rank", type=click.IntRange(0, WORLD_SIZE - 1), help="Kill this rank with SIGKILL half-way.")
@json_option
def demo(folder: Path, steps: int, slow_rank: int | None, kill_rank: int | None, *, as_json: bool) -> int:
    """Train a small model on two ranks, record it, and bring the record into governed tables.

    Everything runs on this machine's CPUs, without a service: torchrun, a Dask cluster and a Prefect server start and
    end with the command. Run it again to add another run to the lake. Exits 1 if anything recorded is missing.
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
    with ThreadPoolExecutor(1) as beside:  # its ranks measure themselves by the same clock: a busy machine is no error
        truth = beside.submit(experiment, known, FEWEST_STEPS)
        done = run_pipeline(
            FlowSettings(str(lake), str(spool), dask_workers=2), folder / "prefect", lambda stage: say(f"    {stage}")
        )
    say("4/5 asking the lake")
    facts = gather(str(lake), str(spool), trained, done["check"])
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
    """Write the report; return where it begins, or None where the chart library is not installed, which is reported."""
    context = Context.of(Config(), {"lake.uri": str(lake), "report.out": str(out)})
    try:
        made = report_once(context)["published"]
    except ModuleNotFoundError as error:
        if error.name != "vl_convert":
            raise
        tell("no pages: vl_convert is not installed; pip install 'ranklake[report]'", err=True)
        return None
    return f"{made['out']}/index.html"


def _plain(facts: Facts) -> dict[str, object]:
    outcome = {"lost": facts.lost, "repeated": facts.repeated, "books_add_up": facts.books_add_up}
    other = {one.name: getattr(facts, one.name) for one in fields(facts) if one.name not in {"of_run", "cause"}}
    return {**asdict(facts.of_run), "critical_path": path_facts(facts.cause), **outcome, **other}


def _program() -> str:
    """Return what to type for ``ranklake`` here: the bare name if the shell finds it, else where it is."""
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
