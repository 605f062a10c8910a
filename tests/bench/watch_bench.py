"""What `ranklake watch` costs a rank that it follows, and how far behind it is.

    .venv/bin/python tests/bench/watch_bench.py [--json] [--pairs N] [--turns N] [--seconds N]

Like ranks record side by side, 22 steps a second each. In each turn every second one is followed, in the next turn the
others: a pair is two neighbours in one turn. The cost is the mean of what the followed rank of a pair took of a core
beyond the other, with a 95 % interval; a rank's own time differs by more than that from one turn to the next, so many
pairs are needed. Ranks run on the first core and who follows them on the others, as far as there are others. Needs
Linux, whose `schedstat` counts a thread's time in nanoseconds.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from ranklake import capture

COST_PERCENT = 0.1
BEHIND_S = 2.0
STEP_S = 0.045
START_S = 60.0
"""What a command may take to tell its first step."""


def record(folder: str) -> None:
    """Be a rank until standard input ends, and say when it begins; then print when each step ended."""
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    ended = []
    with capture.start(
        job="watched", run=Path(folder).name, spool=f"{folder}/spool", local_dir=f"{folder}/local"
    ) as run:
        print("records", flush=True)
        while not over.is_set():
            with run.step(len(ended), tokens=7):
                time.sleep(STEP_S)
                run.log(loss=1 / (len(ended) + 1))
            ended.append(time.time_ns())
    print(json.dumps(ended))


class Rank:
    """A process that records, and now and then one that follows it."""

    def __init__(self, folder: Path, cores: Sequence[int]) -> None:
        self.folder, self._elsewhere = folder, cores[1:] or cores
        self._process = _started([sys.executable, __file__, "--record", str(folder)], cores[:1], stdin=subprocess.PIPE)
        self._follower: subprocess.Popen[str] | None = None
        self.told: list[list[tuple[int, int]]] = []
        """Each time that it was followed: when something was told, in ns, and of which step."""

    def wait(self) -> None:
        """Wait until it records."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "records\n"

    def cpu_s(self) -> float:
        """CPU time of all its threads until now."""
        threads = Path(f"/proc/{self._process.pid}/task").iterdir()
        return sum(int((one / "schedstat").read_text().split()[0]) for one in threads) / 1e9

    def follow(self) -> threading.Event:
        """Have it followed; return what is set once something is told of it."""
        command = [sys.executable, "-m", "ranklake", "watch", self.folder.name, "--json"]
        self._follower = _started([*command, "--local-dir", f"{self.folder}/local"], self._elsewhere)
        begun = threading.Event()
        threading.Thread(target=self._listen, args=[self._follower, begun], daemon=True).start()
        return begun

    def _listen(self, follower: "subprocess.Popen[str]", begun: threading.Event) -> None:
        told: list[tuple[int, int]] = []
        self.told.append(told)
        assert follower.stdout is not None
        for line in follower.stdout:
            now = time.time_ns()
            told.append((now, json.loads(line)["step"]))
            begun.set()

    def leave_alone(self) -> None:
        """Have it followed no more."""
        if self._follower is not None:
            self._follower.kill()
            self._follower.wait()

    def end(self) -> list[float]:
        """End it; return how many seconds after its end each step was told that ended while it was followed."""
        self.leave_alone()
        ended = json.loads(self._process.communicate()[0])
        behind: list[float] = []
        for told in self.told:
            for (before, seen), (now, step) in pairwise(told):
                behind += [(now - at) / 1e9 for at in ended[seen + 1 : step + 1] if at >= before]
        return behind


def _started(command: Sequence[str], cores: Sequence[int], stdin: int | None = None) -> "subprocess.Popen[str]":
    process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    os.sched_setaffinity(process.pid, cores)
    return process


def turn(followed: Sequence[Rank], alone: Sequence[Rank], seconds: float) -> list[tuple[float, float]]:
    """Return what the followed and the other rank of each pair took, in percent of a core."""
    if not all(begun.wait(START_S) for begun in [rank.follow() for rank in followed]):
        raise SystemExit("a rank was not followed within a minute")
    began, before = time.monotonic(), [[rank.cpu_s() for rank in some] for some in (followed, alone)]
    time.sleep(seconds)
    took, after = time.monotonic() - began, [[rank.cpu_s() for rank in some] for some in (followed, alone)]
    for rank in followed:
        rank.leave_alone()
    used = [[100 * (b - a) / took for a, b in zip(*both, strict=True)] for both in zip(before, after, strict=True)]
    return list(zip(*used, strict=True))


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was measured; percentages are of a core, `within` is half of the 95 % interval of `more`."""

    pairs: int
    alone_percent: float
    followed_percent: float
    more_percent: float
    within_percent: float
    steps: int
    behind_median_s: float
    behind_most_s: float


def measure(pairs: int, turns: int, seconds: float) -> Found:
    """Have ranks followed by turns."""
    with tempfile.TemporaryDirectory(prefix="ranklake-bench-") as scratch:
        cores = sorted(os.sched_getaffinity(0))
        ranks = [Rank(Path(scratch) / f"rank{number}", cores) for number in range(2 * pairs)]
        for rank in ranks:
            rank.wait()
        used = []
        for number in range(turns):
            used += turn(ranks[number % 2 :: 2], ranks[1 - number % 2 :: 2], seconds)
            print(f"turn {number + 1} of {turns}", file=sys.stderr)
        behind = [value for rank in ranks for value in rank.end()]
    more = [followed - alone for followed, alone in used]
    return Found(
        pairs=len(used),
        alone_percent=statistics.mean(alone for _, alone in used),
        followed_percent=statistics.mean(followed for followed, _ in used),
        more_percent=statistics.mean(more),
        within_percent=1.96 * statistics.stdev(more) / math.sqrt(len(more)),
        steps=len(behind),
        behind_median_s=statistics.median(behind),
        behind_most_s=max(behind),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5, help="pairs of ranks at a time")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long a turn is")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--record", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record:
        record(options.record)
        return
    found = measure(options.pairs, options.turns, options.seconds)
    if options.json:
        print(json.dumps(asdict(found)))
        return
    print(f"a rank alone {found.alone_percent:.3f} % of a core, followed {found.followed_percent:.3f} %")
    print(
        f"more by following {found.more_percent:+.3f} ± {found.within_percent:.3f} % of a core, "
        f"of {found.pairs} pairs ({COST_PERCENT} asked)"
    )
    print(
        f"a step is told after {found.behind_median_s:.2f} s, {found.behind_most_s:.2f} s at most, "
        f"of {found.steps:,} steps ({BEHIND_S:.0f} asked)"
    )


if __name__ == "__main__":
    main()
