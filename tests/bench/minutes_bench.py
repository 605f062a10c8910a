"""What a minute costs while its date fills up: rounds of the pipeline, a minute of a job each, and rounds without news.

    .venv/bin/python tests/bench/minutes_bench.py [--json] [--gpus N] [--rounds N] [--generated FOLDER]

A job is generated whole; before each round the packs of one more minute come into the spool. A round is a process of
`ranklake pipeline`, measured in CPU time with all processes that it started, so that it holds on a machine that others
use, too. What each stage took of that is from the table `stage_runs`.
"""

import argparse
import json
import shutil
import sys
import tempfile
import zipfile
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

from measured_command import run_measured

IDLE_CPU_S = 2.0
GROWTH = 1.1
"""What is asked: CPU time of a round without news, and of the last round over the first that has a whole minute."""
IDLE = 2
FIRST = 2
"""The first rounds make the tables; the second is the first that is like all others."""


@dataclass(frozen=True)
class Round:
    """CPU seconds of one round, and of each of its stages, in order; `largest_bytes` is of its largest process."""

    minute: int
    cpu_s: float
    largest_bytes: int
    stages: dict[str, float]


def packs_by_minute(spool: Path) -> list[list[Path]]:
    """Packs of a generated spool, a list for each minute: by attempt and number of their segments of `steps`.

    A pack without such a segment, of a minute between two attempts, comes last.
    """
    minutes = defaultdict(list)
    for pack in sorted(spool.rglob("*.zip")):
        names = [name.split("~") for name in zipfile.ZipFile(pack).namelist() if "/steps/" in name]
        last = max(((int(name[1][1:]), int(name[4])) for name in names), default=(sys.maxsize, 0))
        minutes[last].append(pack)
    return [packs for _, packs in sorted(minutes.items())]


def measure(generated: Path, folder: Path, rounds: int) -> list[Round]:
    """Run a round for each minute, then some without news."""
    spool, lake = folder / "spool", folder / "lake"
    used = []
    minutes = packs_by_minute(generated)[:rounds]
    for number, packs in enumerate([*minutes, *([[]] * IDLE)], 1):
        for pack in packs:
            place = spool / pack.relative_to(generated)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(pack, place)
        _, usage = run_measured("pipeline", "--lake", str(lake), "--spool", str(spool), "--json")
        used.append((number if packs else 0, usage.cpu_s, usage.largest_bytes))
        print(f"round {number}: {usage.cpu_s:.2f} CPU-s", file=sys.stderr, flush=True)
    rows = json.loads(
        run_measured("sql", "--lake", str(lake), "--json", "SELECT round, stage, cpu_s FROM stage_runs ORDER BY ts")[0]
    )
    by_round: dict[str, dict[str, float]] = {}
    for row in rows:
        stages = by_round.setdefault(row["round"], {})
        again = f"{row['stage']} again" if row["stage"] in stages else row["stage"]
        stages[again] = row["cpu_s"]
    return [Round(*one, stages) for one, stages in zip(used, by_round.values(), strict=True)]


def table(rounds: list[Round]) -> str:
    """Return what was measured, as Markdown; a few rounds of many."""
    busy = [one for one in rounds if one.minute]
    shown = sorted({FIRST, len(busy), *(n for n in (20, 40) if n < len(busy))})
    shown_rounds = [one for one in rounds if one.minute in shown or not one.minute]
    stages = list(dict.fromkeys(name for one in shown_rounds for name in one.stages))
    head = f"| round | all, CPU-s | {' | '.join(stages)} | largest process, MiB |"
    lines = [head, f"|---|{'---:|' * (len(stages) + 2)}"]
    for one in shown_rounds:
        cells = [f"{one.stages[name]:.2f}" if name in one.stages else "" for name in stages]
        name = str(one.minute) if one.minute else "without news"
        lines.append(f"| {name} | {one.cpu_s:.2f} | {' | '.join(cells)} | {one.largest_bytes / 2**20:,.0f} |")
    first, last = (sum(one.cpu_s for one in some) / len(some) for some in (busy[FIRST - 1 :][:5], busy[-5:]))
    idle = min(one.cpu_s for one in rounds if not one.minute)
    growth = f"the last five rounds cost {last / first:.2f} times the first five ({GROWTH} asked)"
    lines += ["", f"{growth}; a round without news {idle:.2f} CPU-s ({IDLE_CPU_S} asked)"]
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--generated", type=Path, help="a spool that `ranklake bench generate` filled before")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ranklake-minutes-") as scratch:
        folder = Path(scratch)
        generated = options.generated or folder / "generated"
        if options.generated is None:
            size = ("--gpus", str(options.gpus), "--hours", str(options.rounds / 60), "--seal-s", "60")
            run_measured("bench", "generate", *size, "--spool", str(generated))
        rounds = measure(generated, folder, options.rounds)
    print(json.dumps([asdict(one) for one in rounds]) if options.json else table(rounds))


if __name__ == "__main__":
    main()
