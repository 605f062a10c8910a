"""What a recording call costs the thread that makes it: ranklake's recorder beside its peers, as ratios in one run.

    .bench-venv/bin/python tests/bench/capture_bench.py [--json] [--without-peers] [--rounds N] [--calls N]

README.md beside this file says how to read what it prints.
"""

import argparse
import contextlib
import json
import logging
import os
import platform
import statistics
import sys
import tempfile
import textwrap
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import peers
from spool_count import Books, close_books

from ranklake import capture
from ranklake.capture.common.native import MODULE

BARE, HANDLE, MAPPING, SPAN, STEP = "bare slot", "ranklake scalar", "ranklake mapping", "ranklake span", "ranklake step"
NAMED_SPAN = "ranklake span, by name"
TEN, RESTED = "ranklake step, ten values", ", rested"
CONTROL = "nothing recorded"
PEER_AIMS = {peers.TENSORBOARD: 100, peers.WANDB: 300, peers.MLFLOW_ASYNC: 700, peers.MLFLOW: 700}
FEWEST_FOR_P999 = 1000
PAUSE_CALLS = 20
REST_S = 0.002
TEN_MOST_NS = {"p50_ns": 15_000.0, "p99_ns": 40_000.0}
TEN_PEER_AIM = {"C": 5, "Python": 2}

Aim = tuple[str, float | None, str, float, str]

_BATCH = """
def batch(first, calls, clock, {names}):
{setup}
    began = clock()
    for i in range(first, first + calls):
{statement}
    return clock() - began
"""
_EACH = """
def each(first, calls, clock, {names}):
{setup}
    times = array("q", bytes(8 * calls))
    for i in range(first, first + calls):
{rest}
        began = clock()
{statement}
        times[i - first] = clock() - began
    return times
"""


@dataclass
class Case:
    """A call to be measured.

    Attributes
    ----------
    statement
        Python that makes one call; it may use `i`, which counts the calls of the case, and the names below.
    names
        What the statement uses. Bound as arguments, so that no lookup in a dictionary is measured.
    setup
        Python that runs before each batch, outside the measured time.
    settle
        Called after each batch, outside the measured time: lets background work end that would fall on others.
    rows
        Rows that one call records, by table; only ranklake's are counted afterwards.
    rest_s
        Seconds of sleep before each call, outside the measured time, as a training loop calls: what the call needs is
        then in no cache. Such a case is measured call by call alone.
    """

    name: str
    statement: str
    names: dict[str, object]
    setup: str = "pass"
    settle: Callable[[], object] = lambda: None
    rows: dict[str, int] = field(default_factory=dict)
    rest_s: float = 0.0
    done: int = 0
    calls: int = 0
    means: list[float] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    worst: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._batch, self._each = self._compiled(_BATCH, "batch"), self._compiled(_EACH, "each")

    def _compiled(self, template: str, name: str) -> Callable[..., object]:
        # times go into an array that is there: a list's new numbers fault pages in, within the time of some calls
        made: dict[str, Callable[..., object]] = {"array": array, "rest": time.sleep}
        text = template.format(
            rest=f"        rest({self.rest_s})" if self.rest_s else "",
            names=", ".join(self.names),
            setup=textwrap.indent(self.setup, " " * 4),
            statement=textwrap.indent(self.statement, " " * 8),
        )
        # as timeit does, so that no call is measured but the one in question
        exec(compile(text, f"<{self.name}>", "exec"), made)
        return made[name]

    def batch(self, calls: int) -> int:
        """Return the nanoseconds that so many calls take together."""
        first, self.done = self.done, self.done + calls
        return self._batch(first, calls, time.perf_counter_ns, **self.names)

    def each(self, calls: int) -> list[int]:
        """Return the nanoseconds of each of so many calls, the timer's own included."""
        first, self.done = self.done, self.done + calls
        return self._each(first, calls, time.perf_counter_ns, **self.names)


def own_cases(run: capture.Run, folder: Path) -> list[Case]:
    """Return ranklake's calls and the two bare ones that they are held against."""
    handle = run.scalar("bench/loss")
    names = ", ".join(f'"bench/m{n}": value' for n in range(10))
    ten = f"""
        with step(first_step + i, tokens=64):
            with phase("forward"):
                pass
            with phase("backward"):
                pass
            log({{{names}}})"""
    step = """
        with step(i, tokens=64):
            with phase("forward"):
                pass
            with phase("backward"):
                pass
            log(loss=value, lr=value)"""
    return [
        *peers.bare_cases(Case, BARE, folder),
        Case(CONTROL, "work(numbers)", {"work": sum, "numbers": (1,) * 60}),
        Case(HANDLE, "add(value, i)", {"add": handle.add, "value": 0.25}, rows={"scalars": 1}),
        Case(MAPPING, f"log({{{names}}})", {"log": run.log, "value": 0.25}, rows={"scalars": 10}),
        Case(SPAN, "with forward:\n    pass", {"forward": run.phase("forward")}, rows={"spans": 1}),
        Case(NAMED_SPAN, 'with phase("forward"):\n    pass', {"phase": run.phase}, rows={"spans": 1}),
        Case(
            STEP,
            textwrap.dedent(step).strip(),
            {"step": run.step, "phase": run.phase, "log": run.log, "value": 0.25},
            rows={"steps": 1, "spans": 3},
        ),
        *(
            Case(
                name,
                textwrap.dedent(ten).strip(),
                {"step": run.step, "phase": run.phase, "log": run.log, "value": 0.25, "first_step": first_step},
                rows={"steps": 1, "spans": 3, "scalars": 10},
                rest_s=rest_s,
            )
            # numbers of their own: a step that comes again is recorded as a misuse, which is a row
            for name, rest_s, first_step in ((TEN, 0.0, 10_000_000), (TEN + RESTED, REST_S, 20_000_000))
        ),
    ]


@contextlib.contextmanager
def watched(case: Case, cases: list[Case], missing: dict[str, str]) -> Iterator[None]:
    """Take a peer that fails in the block out of `cases` and note why in `missing`; what is not a peer's, raise."""
    try:
        yield
    except Exception as error:
        if not case.name.startswith(peers.NAMES):
            raise
        cases.remove(case)
        missing[case.name] = peers.reason(error)


def size(case: Case, most: int, seconds: float) -> None:
    """Warm a case up and choose its calls per batch: `most`, or what fits into `seconds`."""
    if case.rest_s:
        case.calls = PAUSE_CALLS
        case.each(PAUSE_CALLS)
        return
    case.batch(PAUSE_CALLS)
    spent = max(1, case.batch(PAUSE_CALLS)) / PAUSE_CALLS
    case.calls = max(PAUSE_CALLS, min(most, int(seconds * 1e9 / spent)))
    case.settle()


def measure(cases: list[Case], rounds: int, deadline: float, missing: dict[str, str]) -> int:
    """Go round the cases, another one first each time, until the rounds or the time are over; return the rounds.

    A peer that fails is taken out of `cases`, and `missing` says why.
    """
    for done in range(rounds):
        if done and time.monotonic() > deadline:
            return done
        turn = done % len(cases)
        for case in cases[turn:] + cases[:turn]:
            with watched(case, cases, missing):
                if not case.rest_s:
                    case.means.append(case.batch(case.calls) / case.calls)
                times = case.each(case.calls)
                if case.rest_s:
                    case.means.append(statistics.mean(times))
                case.times += times
                if len(times) >= FEWEST_FOR_P999:
                    case.worst.append(share(sorted(times), 0.999))
                case.settle()
    return rounds


def timer_cost() -> tuple[float, float]:
    """Return what an empty loop's turn and an empty timed call take, in ns: subtracted from everything."""
    nothing = Case("nothing", "pass", {})
    loop = statistics.median(nothing.batch(10_000) / 10_000 for _ in range(9))
    return loop, statistics.median(nothing.each(20_000))


def share(times: list[int], part: float) -> float:
    """Return a quantile of sorted times: the nearest one, so that nothing in between is made up."""
    return times[min(len(times) - 1, int(part * len(times)))]


def figures(cases: list[Case], loop: float, timer: float) -> list[dict[str, object]]:
    """Return a row of figures for each case."""
    medians = {case.name: max(0.0, statistics.median(case.means) - loop) for case in cases}
    sorted_times = {case.name: sorted(case.times) for case in cases}
    p50 = {name: max(0.0, share(times, 0.5) - timer) for name, times in sorted_times.items()}
    return [
        {
            "name": case.name,
            "calls": case.done,
            "ns": medians[case.name],
            "p50_ns": p50[case.name],
            "p99_ns": max(0.0, share(sorted_times[case.name], 0.99) - timer),
            "p999_ns": max(0.0, statistics.median(case.worst) - timer) if case.worst else None,
            "p999_of_all_ns": max(0.0, share(sorted_times[case.name], 0.999) - timer) if case.worst else None,
            "to_bare": medians[case.name] / medians[BARE],
            "to_scalar": medians[case.name] / medians[HANDLE],
            "p50_to_bare": p50[case.name] / p50[BARE] if p50[BARE] else None,
            "p50_to_scalar": p50[case.name] / p50[HANDLE] if p50[HANDLE] else None,
        }
        for case in cases
    ]


def targets(rows: list[dict[str, object]], books: Books, hot_path: str) -> list[dict[str, object]]:
    """Return what was aimed at, what was found (None where it could not be measured) and whether it is met."""
    found = {row["name"]: row for row in rows}

    def get(name: str, key: str) -> float | None:
        return found[name][key] if name in found else None

    aims: list[Aim] = []
    for name, most in ((HANDLE, 1.4), (MAPPING, 5.0), (SPAN, 3.1)):
        for by, key in (("mean", "to_bare"), ("p50", "p50_to_bare")):
            aims.append((f"{name}: at most {most} x bare slot, by {by}", get(name, key), "<=", most, "x"))
    own = (HANDLE, MAPPING, SPAN)
    aims.extend((f"{name}: p99.9 at most 3,000 ns", get(name, "p999_ns"), "<=", 3000.0, "ns") for name in own)
    aims.append(("one thread, by handle: at least 2 M events/s", 1e9 / found[HANDLE]["ns"], ">=", 2e6, "/s"))
    for name, least in PEER_AIMS.items():
        for by, key in (("mean", "to_scalar"), ("p50", "p50_to_scalar")):
            aims.append((f"{name}: at least {least} x ranklake scalar, by {by}", get(name, key), ">=", least, "x"))
    for rest in ("", RESTED):
        for peer in (peers.TENSORBOARD_TEN, peers.TRACKIO_TEN):
            ours, theirs, least = get(TEN + rest, "p50_ns"), get(peer + rest, "p50_ns"), TEN_PEER_AIM[hot_path]
            ratio = theirs / ours if ours and theirs else None
            aims.append((f"{peer}{rest}: at least {least} x ranklake's, by p50", ratio, ">=", least, "x"))
    for key, most in TEN_MOST_NS.items():
        aims.append((f"{TEN}: {key[:3]} at most {most:,.0f} ns", get(TEN, key), "<=", most, "ns"))
    aims.append(("uncounted drops: 0", books.uncounted, "<=", 0, ""))
    return [
        {
            "target": text,
            "found": value,
            "unit": unit,
            "met": None if value is None else (value <= bound if kind == "<=" else value >= bound),
        }
        for text, value, kind, bound, unit in aims
    ]


def bench(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure everything, count what was recorded, and return all of it."""
    deadline = time.monotonic() + options.limit
    missing: dict[str, str] = {}
    with contextlib.ExitStack() as ends:
        run = capture.start(job="bench", run="bench", spool=folder / "spool", local_dir=folder / "local", rank=0)
        ends.callback(run.close)
        cases = own_cases(run, folder)
        if not options.without_peers:
            for made in peers.MAKERS:
                here, why = made(Case, folder, ends)
                cases += here
                missing |= why
        for case in list(cases):
            with watched(case, cases, missing):
                size(case, options.calls, options.seconds)
        loop, timer = timer_cost()
        rounds = measure(cases, options.rounds, deadline, missing)
        run.close(timeout_s=60)
    books = close_books(folder / "spool", [(case.rows, case.done) for case in cases], run.gaps())
    rows = figures(cases, loop, timer)
    hot_path = "Python" if MODULE is None else "C"
    return {
        "machine": {"python": platform.python_version(), "cpus": os.cpu_count(), "system": platform.system()},
        "hot_path": hot_path,
        "rounds": rounds,
        "rounds_wanted": options.rounds,
        "subtracted_ns": {"loop": loop, "timer": timer},
        "cases": rows,
        "not_available": missing,
        "books": books.as_dict(),
        "targets": targets(rows, books, hot_path),
    }


def table(lines: list[tuple[str, ...]]) -> Iterator[str]:
    """Lay out lines in columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        first, *others = (
            text.ljust(w) if n == 0 else text.rjust(w) for n, (text, w) in enumerate(zip(line, widths, strict=True))
        )
        yield "  ".join((first, *others)).rstrip()


def text_of(result: dict[str, object]) -> Iterator[str]:
    """Lay out a result for people."""
    rounds, path = result["rounds"], result["hot_path"]
    yield f"Cost per call in the calling thread, hot path in {path}: medians of {rounds} interleaved rounds"
    yield ", ".join(f"{name} {value}" for name, value in result["machine"].items())
    if result["rounds"] < result["rounds_wanted"]:
        yield f"(stopped before round {result['rounds_wanted']}: the time was over)"
    yield ""
    heads = (
        "call",
        "calls",
        "ns",
        "p50 ns",
        "p99 ns",
        "p99.9 ns",
        "of all",
        "x bare slot",
        "x ranklake scalar",
        "by p50",
    )
    lines = [heads]
    for row in result["cases"]:
        worst = ["-" if row[key] is None else f"{row[key]:,.0f}" for key in ("p999_ns", "p999_of_all_ns")]
        by_p50 = "-" if row["p50_to_scalar"] is None else f"{row['p50_to_scalar']:,.2f}"
        numbers = (f"{row['calls']:,}", *(f"{row[key]:,.0f}" for key in ("ns", "p50_ns", "p99_ns")), *worst)
        lines.append((row["name"], *numbers, f"{row['to_bare']:,.2f}", f"{row['to_scalar']:,.2f}", by_p50))
    yield from table(lines)
    for name, why in result["not_available"].items():
        yield f"{name}: not available: {why}"
    yield ""
    lines = [("target", "found", "")]
    for aim in result["targets"]:
        found = "" if aim["found"] is None else f"{aim['found']:,.2f} {aim['unit']}".rstrip()
        lines.append((aim["target"], found, {None: "not measured", True: "met", False: "not met"}[aim["met"]]))
    yield from table(lines)
    yield ""
    yield from table([("table", "recorded", "stored", "gaps"), *(
        (name, f"{book['recorded']:,}", f"{book['stored']:,}", f"{book['gaps']:,}")
        for name, book in result["books"]["tables"].items()
    )])  # fmt: skip
    yield f"stored twice: {result['books']['twice']}; uncounted drops = {result['books']['uncounted']}"


def main() -> int:
    """Run the bench; exit 1 if a row was lost without being counted. A slow machine is no failure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="times to go round all cases")
    parser.add_argument(
        "--calls", type=int, default=5000, help="most calls of a case in one batch; two batches a round"
    )
    parser.add_argument("--seconds", type=float, default=0.04, help="longest batch: slow peers make fewer calls")
    parser.add_argument("--limit", type=float, default=60.0, help="begin no further round after so many seconds")
    parser.add_argument("--without-peers", action="store_true", help="measure ranklake and the bare calls alone")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    options = parser.parse_args()
    os.environ.update(peers.QUIET)
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="capture-bench-") as folder:
        result = bench(options, Path(folder))
    print(json.dumps(result) if options.json else "\n".join(text_of(result)))
    return 1 if result["books"]["uncounted"] else 0


if __name__ == "__main__":
    sys.exit(main())
