"""Thirty everyday tasks beside MLflow, TensorBoard, wandb and trackio: steps and seconds of each, done for real.

A step is a command that somebody types, or a statement of Python where a tool has no command; seconds are those of the
whole process and its CPU seconds, best of three. What a tool cannot do by itself, without a server of somebody else,
says why. The same runs are recorded by all. `page` has the clicks on a page of `ranklake ui`, which tests/pages makes.
Prints a table in Markdown, and exits 1 if a task that ranklake should do fails.
"""

import argparse
import base64
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import yaml
from peers import QUIET

ROOT: Final = Path(__file__).parents[2]
PEERS_BIN: Final = ROOT / ".bench-venv/bin"
ROLES: Final = ROOT / "retention/roles.yaml"
OURS_BIN: Final = Path(sys.executable).parent
TOOLS: Final = ("ranklake", "mlflow", "tensorboard", "wandb", "trackio")
GOOD, BAD, LIVE, ARCHIVED = "gpt-0", "gpt-1", "live", "gpt-3"

_SETTINGS: Final = """
[lake]
uri = "{lake}"
[spool]
uri = "{spool}"
[sql]
roles = "{roles}"
[masking]
key = "env:EVERYDAY_KEY"
[artifacts]
allow = ["{out}"]
"""
_IMAGE: Final = "import numpy as np; image = np.random.default_rng(1).integers(0, 255, (8, 8, 3), dtype=np.uint8)"
_OURS: Final = f"""
{_IMAGE}
from ranklake import capture
for k in range({{runs}}):
    with capture.start(run=f"gpt-{{{{k}}}}", job="gpt", config={{{{"lr": round(0.001 * (k + 1), 6)}}}}) as run:
        run.media("picture", image)
        with run.checkpoint("{{out}}/best.pt", step=0, tag="best", tag_value=3.0, tag_metric="loss") as path:
            open(path, "wb").write(b"weights")
        for n in range({{steps}}):
            with run.step(n, tokens=1024), run.phase("forward"):
                run.log(loss=3.0 / (n + 1 + k))
"""
# Goes on until its input ends, so that it can be followed meanwhile.
_LIVE: Final = """
import sys, threading
from ranklake import capture
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
with capture.start(run="live", job="gpt") as run:
    n = 0
    while not ended.wait(0.05):
        with run.step(n, tokens=1024):
            run.log(loss=3.0 / (n + 1))
        n += 1
        if n == 20:
            print("recording", flush=True)
"""
_MLFLOW: Final = """
import mlflow
mlflow.set_experiment("gpt")
for k in range({runs}):
    with mlflow.start_run(run_name=f"gpt-{{k}}"):
        mlflow.log_param("lr", round(0.001 * (k + 1), 6))
        mlflow.log_artifact("{out}/best.pt")
        mlflow.log_artifact("{out}/picture.png")
        for n in range({steps}):
            mlflow.log_metric("loss", 3.0 / (n + 1 + k), step=n)
for name in ("gpt-0", "gpt-3"):
    print(mlflow.search_runs(["1"], f"attributes.run_name = '{{name}}'").run_id[0])
"""
_TENSORBOARD: Final = f"""
{_IMAGE}
from tensorboardX import SummaryWriter
for k in range({{runs}}):
    with SummaryWriter(f"{{tb}}/gpt-{{{{k}}}}") as writer:
        writer.add_image("picture", image, dataformats="HWC")
        for n in range({{steps}}):
            writer.add_scalar("loss", 3.0 / (n + 1 + k), n)
"""
_WANDB: Final = f"""
{_IMAGE}
import wandb
for k in range({{runs}}):
    with wandb.init(
        project="gpt", name=f"gpt-{{{{k}}}}", dir="{{wandb}}", config={{{{"lr": 0.001 * (k + 1)}}}}
    ) as run:
        run.log({{{{"picture": wandb.Image(image)}}}})
        for n in range({{steps}}):
            run.log({{{{"loss": 3.0 / (n + 1 + k)}}}})
"""
_TRACKIO: Final = f"""
{_IMAGE}
import trackio
for k in range({{runs}}):
    config = {{{{"lr": round(0.001 * (k + 1), 6)}}}}
    trackio.init(project="gpt", name=f"gpt-{{{{k}}}}", config=config, embed=False, auto_log_gpu=False)
    trackio.log({{{{"picture": trackio.Image(image)}}}}, step=0)
    best = trackio.Artifact("best", type="model")
    best.add_file("{{out}}/best.pt")
    trackio.log_artifact(best, aliases=["best"])
    for n in range({{steps}}):
        trackio.log({{{{"loss": 3.0 / (n + 1 + k)}}}}, step=n)
    trackio.finish()
"""


class Bench:
    """Folders of all tools, and what runs in them."""

    def __init__(self, folder: Path) -> None:
        places = {name: str(folder / name) for name in ("lake", "spool", "tb", "wandb", "trackio", "out")}
        named = {"good": GOOD, "bad": BAD, "live": LIVE, "archived": ARCHIVED, "ui": "http://127.0.0.1:8412/"}
        self.places = {**places, **named, "mlflow_good": "", "mlflow_archived": ""}
        for place in ("out", "wandb"):
            Path(places[place]).mkdir()
        tracking = {"MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}", "TRACKIO_DIR": places["trackio"]}
        (folder / "ranklake.toml").write_text(_SETTINGS.format(**self.places, roles=ROLES))
        own = {"EVERYDAY_KEY": base64.b64encode(os.urandom(32)).decode(), "NO_COLOR": "1"}
        paths = os.pathsep.join((str(OURS_BIN), str(PEERS_BIN), os.environ["PATH"]))
        self._environment = {**os.environ, **QUIET, **tracking, **own, "PATH": paths}
        self._folder = folder

    def record(self, runs: int, steps: int, tools: Sequence[str]) -> None:
        """Record the same runs with ranklake and with other tools, and make ranklake's tables."""
        values = {"runs": runs, "steps": steps, **self.places}
        self._python(OURS_BIN, _OURS.format(**values))
        self._run(["ranklake", "pipeline"])
        self._run(shlex.split("ranklake media {good} picture --output {out}/picture.png".format(**values)))
        if "mlflow" in tools:
            ids = self._python(PEERS_BIN, _MLFLOW.format(**values)).split()
            self.places["mlflow_good"], self.places["mlflow_archived"] = ids[-2:]
        for tool, code in (("tensorboard", _TENSORBOARD), ("wandb", _WANDB), ("trackio", _TRACKIO)):
            if tool in tools:
                self._python(PEERS_BIN, code.format(**values))

    @contextmanager
    def live(self) -> Iterator[None]:
        """Have a run that records meanwhile."""
        command = [str(OURS_BIN / "python"), "-c", _LIVE]
        with subprocess.Popen(
            command, env=self._environment, cwd=self._folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as run:
            assert run.stdout is not None
            run.stdout.readline()
            yield
            run.communicate()

    def steps_and_seconds(self, tool: str, way: list[str], times: int) -> tuple[int, float, float]:
        """Carry out a task; return its steps, and the seconds and CPU seconds of its fastest time.

        Raises `subprocess.SubprocessError`.
        """
        lines = [line.format(**self.places) for line in way]
        best = best_cpu = float("inf")
        for _ in range(times):
            begin, begin_cpu = time.perf_counter(), _cpu_s()
            if lines[0].split()[0] in {*TOOLS}:
                for line in lines:
                    self._run(shlex.split(line))
            else:
                self._python(OURS_BIN if tool == "ranklake" else PEERS_BIN, "\n".join(lines))
            best, best_cpu = min(best, time.perf_counter() - begin), min(best_cpu, _cpu_s() - begin_cpu)
        return len(lines), best, best_cpu

    def _python(self, bin_: Path, code: str) -> str:
        return self._run([str(bin_ / "python"), "-c", code])

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            command, env=self._environment, cwd=self._folder, capture_output=True, text=True, timeout=300, check=False
        )
        # Checks and plans exit 1 where there is something to tell; a traceback or a mistake in use is a failure.
        if done.returncode not in {0, 1} or "Traceback" in done.stderr or done.stderr.startswith("Usage"):
            raise subprocess.SubprocessError(f"{shlex.join(command)[:200]}: {done.stderr.strip()[-300:]}")
        return done.stdout


def _cpu_s() -> float:
    """Return the CPU time of all processes that ended so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def clicks(task: Mapping[str, Any]) -> str:
    """Return how many clicks and fields a task takes on a page of `ranklake ui`."""
    return str(len(task["page"])) if "page" in task else "-"


def cell(bench: Bench, tool: str, way: list[str] | dict[str, str], times: int) -> tuple[str, str]:
    """Return what the table says of a tool's way, and what failed."""
    if isinstance(way, dict):
        return f"- ({way['none']})", ""
    try:
        steps, seconds, cpu_s = bench.steps_and_seconds(tool, way, times)
    except subprocess.SubprocessError as error:
        return "failed", str(error)
    return f"{steps} in {seconds:.2f} s ({cpu_s:.2f})", ""


def main() -> int:
    """Print the table; return 1 if ranklake fails at a task."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS)
    given = parser.parse_args()
    tasks: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("everyday.yaml").read_text())
    failed: list[str] = []
    done = dict.fromkeys(given.tools, 0)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as meanwhile:
        bench = Bench(Path(folder))
        bench.record(given.runs, given.steps, given.tools)
        meanwhile.enter_context(bench.live())
        print(f"| task | {' | '.join(given.tools)} | page |\n|---|{'---|' * (len(given.tools) + 1)}")
        for task in tasks:
            cells = []
            for tool in given.tools:
                said, fault = cell(bench, tool, task[tool], given.times)
                done[tool] += said[0].isdigit()
                failed += [f"{tool}: {task['task']}: {fault}"] if fault else []
                cells.append(said)
            print(f"| {task['task']} | {' | '.join(cells)} | {clicks(task)} |", flush=True)
    print(f"| of {len(tasks)} | {' | '.join(str(done[tool]) for tool in given.tools)} | |")
    print("\n".join(failed), file=sys.stderr)
    return 1 if any(one.startswith("ranklake:") for one in failed) else 0


if __name__ == "__main__":
    raise SystemExit(main())
