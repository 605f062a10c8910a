"""Thirty everyday tasks beside MLflow, TensorBoard and wandb: steps and seconds of each, done for real.

A step is a command that somebody types, or a statement of Python where a tool has no command; seconds are those of the
whole process, best of three. What a tool cannot do by itself, without a server of somebody else, says why. The same
runs are recorded by all. Prints a table in Markdown, and exits 1 if a task that ranklake should do fails.
"""

import argparse
import base64
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import yaml
from peers import QUIET

ROOT: Final = Path(__file__).parents[2]
PEERS_BIN: Final = ROOT / ".bench-venv/bin"
ROLES: Final = ROOT / "retention/roles.yaml"
OURS_BIN: Final = Path(sys.executable).parent
TOOLS: Final = ("ranklake", "mlflow", "tensorboard", "wandb")
GOOD, BAD, LIVE = "gpt-0", "gpt-1", "live"

_SETTINGS: Final = """
[lake]
uri = "{lake}"
[spool]
uri = "{spool}"
[sql]
roles = "{roles}"
[masking]
key = "env:EVERYDAY_KEY"
"""
_OURS: Final = """
from ranklake import capture
for k in range({runs}):
    with capture.start(run=f"gpt-{{k}}", job="gpt", config={{"lr": round(0.001 * (k + 1), 6)}}) as run:
        for n in range({steps}):
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
        for n in range({steps}):
            mlflow.log_metric("loss", 3.0 / (n + 1 + k), step=n)
print(mlflow.search_runs(["1"], "attributes.run_name = 'gpt-0'").run_id[0])
"""
_TENSORBOARD: Final = """
from tensorboardX import SummaryWriter
for k in range({runs}):
    with SummaryWriter(f"{tb}/gpt-{{k}}") as writer:
        for n in range({steps}):
            writer.add_scalar("loss", 3.0 / (n + 1 + k), n)
"""
_WANDB: Final = """
import wandb
for k in range({runs}):
    with wandb.init(project="gpt", name=f"gpt-{{k}}", dir="{wandb}", config={{"lr": 0.001 * (k + 1)}}) as run:
        for n in range({steps}):
            run.log({{"loss": 3.0 / (n + 1 + k)}})
"""


class Bench:
    """Folders of all tools, and what runs in them."""

    def __init__(self, folder: Path) -> None:
        places = {name: str(folder / name) for name in ("lake", "spool", "tb", "wandb", "out")}
        self.places = {**places, "good": GOOD, "bad": BAD, "live": LIVE, "mlflow_good": ""}
        for place in ("out", "wandb"):
            Path(places[place]).mkdir()
        tracking = {"MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"}
        (folder / "ranklake.toml").write_text(_SETTINGS.format(**self.places, roles=ROLES))
        own = {"EVERYDAY_KEY": base64.b64encode(os.urandom(32)).decode(), "NO_COLOR": "1"}
        paths = os.pathsep.join((str(OURS_BIN), str(PEERS_BIN), os.environ["PATH"]))
        self._environment = {**os.environ, **QUIET, **tracking, **own, "PATH": paths}
        self._folder = folder

    def record(self, runs: int, steps: int) -> None:
        """Record the same runs with all tools, and make ranklake's tables."""
        values = {"runs": runs, "steps": steps, **self.places}
        self._python(OURS_BIN, _OURS.format(**values))
        self._run(["ranklake", "pipeline"])
        self.places["mlflow_good"] = self._python(PEERS_BIN, _MLFLOW.format(**values)).split()[-1]
        self._python(PEERS_BIN, _TENSORBOARD.format(**values))
        self._python(PEERS_BIN, _WANDB.format(**values))

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

    def steps_and_seconds(self, tool: str, way: list[str], times: int) -> tuple[int, float]:
        """Carry out a task; return its steps, and the seconds of its fastest time.

        Raises `subprocess.SubprocessError`.
        """
        lines = [line.format(**self.places) for line in way]
        best = float("inf")
        for _ in range(times):
            begin = time.perf_counter()
            if lines[0].split()[0] in {*TOOLS}:
                for line in lines:
                    self._run(shlex.split(line))
            else:
                self._python(OURS_BIN if tool == "ranklake" else PEERS_BIN, "\n".join(lines))
            best = min(best, time.perf_counter() - begin)
        return len(lines), best

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


def cell(bench: Bench, tool: str, way: list[str] | dict[str, str], times: int) -> tuple[str, str]:
    """Return what the table says of a tool's way, and what failed."""
    if isinstance(way, dict):
        return f"- ({way['none']})", ""
    try:
        steps, seconds = bench.steps_and_seconds(tool, way, times)
    except subprocess.SubprocessError as error:
        return "failed", str(error)
    return f"{steps} in {seconds:.2f} s", ""


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
        bench.record(given.runs, given.steps)
        meanwhile.enter_context(bench.live())
        print(f"| task | {' | '.join(given.tools)} |\n|---|{'---|' * len(given.tools)}")
        for task in tasks:
            cells = []
            for tool in given.tools:
                said, fault = cell(bench, tool, task[tool], given.times)
                done[tool] += said[0].isdigit()
                failed += [f"{tool}: {task['task']}: {fault}"] if fault else []
                cells.append(said)
            print(f"| {task['task']} | {' | '.join(cells)} |", flush=True)
    print(f"| of {len(tasks)} | {' | '.join(str(done[tool]) for tool in given.tools)} |")
    print("\n".join(failed), file=sys.stderr)
    return 1 if any(one.startswith("ranklake:") for one in failed) else 0


if __name__ == "__main__":
    raise SystemExit(main())
