"""``ranklake demo``."""

import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path

import click

from ranklake.capture.recover import recover
from ranklake.commands.options import json_option
from ranklake.demo.facts import Facts, gather
from ranklake.demo.launch import WORLD_SIZE, launch
from ranklake.flows.embedded import run_pipeline
from ranklake.flows.settings import FlowSettings
from ranklake.views.demo import summary_lines
from ranklake.views.json_output import show_json


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
    lake, spool = folder / "lake", folder / "spool"
    _say(f"1/4 training a small GPT on {WORLD_SIZE} ranks, {steps} steps", started := time.monotonic())
    trained = launch(folder, steps, slow_rank, kill_rank)
    _say("2/4 adopting what the ranks left behind", started)
    recover(folder / "local", str(spool))
    _say("3/4 ingest, check, rollup: Prefect flows on a Dask cluster", started)
    done = run_pipeline(FlowSettings(str(lake), str(spool), dask_workers=2), folder / "prefect")
    _say("4/4 asking the lake", started)
    facts = gather(str(lake), str(spool), trained, done["check"])
    if as_json:
        show_json(_plain(facts))
    else:
        click.echo("\n".join(summary_lines(facts, f"{_program()} sql --lake {_shown(lake)}")))
    return 0 if facts.books_add_up and not facts.lost and not facts.repeated else 1


def _plain(facts: Facts) -> dict[str, object]:
    outcome = {"lost": facts.lost, "repeated": facts.repeated, "books_add_up": facts.books_add_up}
    told = asdict(facts)
    return {**told.pop("of_run"), **outcome, **told}


def _program() -> str:
    """Return what to type for ``ranklake`` here: the bare name if the shell finds it, else where it is."""
    here = Path(sys.executable).with_name("ranklake")
    found = shutil.which("ranklake")
    if found and Path(found).resolve() == here.resolve():
        return "ranklake"
    return str(here.relative_to(Path.cwd())) if here.is_relative_to(Path.cwd()) else str(here)


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _say(line: str, started: float) -> None:
    print(f"[{time.monotonic() - started:5.1f} s] {line}", file=sys.stderr, flush=True)  # noqa: T201
