"""Hundreds of injected faults, poison in the spool: no row is lost or twice, no command leaves a traceback or hangs.

    python faults.py [--faults 900] [--seed N]      the campaign; --first N begins at the lake of case N
    python faults.py --seed N --case K              the cases of K's lake up to K, with what each met

A case brings segments, most of them with a hostile object beside, draws a command, a fault, and at which of the
command's operations it strikes, and runs the command. It may fail, in one line, or succeed. Every ten cases all is run
undisturbed: then each acknowledged row is in its table or in rejects once, the books add up or name a hostile stream,
the audit log is whole, no file is damaged, and nothing outside was touched. Each lake is good for `LAKE` cases, in a
process of its own (`faults_child.py`).

Faults come between the process and libc (`faulty.c`, preloaded), so what Python, Arrow and delta-rs do all goes through
them; only calls on what lies below the lake, its witness and the spool count. Every tenth lake lies in an object store
behind a proxy that refuses requests, cuts connections, or keeps an answer to itself. Threads of delta-rs take turns as
they like, so a case that is run again may strike a neighbour of the operation that it struck. Not covered: what goes
round libc, a store's own inconsistencies (`make crash NAME=chaos-s3` has a real one), and a page that the disk loses
after fsync said that it is there.

Exits 1 if anything was found.
"""

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from errno import EACCES, EIO, EMFILE, ENOSPC, ESTALE, ETIMEDOUT
from pathlib import Path
from tempfile import TemporaryDirectory

from stores import moto_server

LAKE = 30
"""Cases of one lake."""
PATIENCE_S = 120.0
"""What one command may take, on a machine that others use, too."""
HERE = Path(__file__).parent

OPEN, MAKE, READ, WRITE, SYNC, LINK, UNLINK, MKDIR, LIST, STAT = (1 << bit for bit in range(10))
FAIL, SHORT, END, TORN, CUT, LATE, HIDE, GONE = range(1, 9)
EVERY = OPEN | MAKE | READ | WRITE | SYNC | LINK | UNLINK | MKDIR | LIST | STAT
CHANGES = MAKE | WRITE | SYNC | LINK | MKDIR

KINDS = {
    "any EIO": (EVERY, FAIL, EIO, 10),
    "any ESTALE": (EVERY, FAIL, ESTALE, 6),
    "any ETIMEDOUT": (EVERY, FAIL, ETIMEDOUT, 6),
    "open EACCES": (OPEN | MAKE, FAIL, EACCES, 6),
    "open EMFILE": (OPEN | MAKE, FAIL, EMFILE, 6),
    "change ENOSPC": (CHANGES, FAIL, ENOSPC, 10),
    "read EIO": (READ, FAIL, EIO, 6),
    "read short": (READ, SHORT, 0, 4),
    "read ends early": (READ, END, 0, 6),
    "read torn": (READ, TORN, 0, 8),
    "write EIO": (WRITE, FAIL, EIO, 4),
    "write cut": (WRITE, CUT, ENOSPC, 6),
    "write short": (WRITE, SHORT, 0, 2),
    "fsync EIO": (SYNC, FAIL, EIO, 4),
    "link or rename EIO": (LINK, FAIL, EIO, 6),
    "link or rename done, not told": (LINK, LATE, EIO, 8),
    "unlink EACCES": (UNLINK, FAIL, EACCES, 4),
    "mkdir done, not told": (MKDIR, LATE, EIO, 2),
    "listing EIO": (LIST, FAIL, EIO, 3),
    "listing lacks": (LIST, HIDE, 0, 6),
    "listed, and gone": (LIST, GONE, 0, 6),
    "stat EIO": (STAT, FAIL, EIO, 4),
}
"""Which operations, what is done to them, with which error, and how often it is drawn."""

ANSWERS_OF_STORES = {
    "answer 403": (403, 3),
    "answer 500": (500, 3),
    "answer 503": (503, 3),
    "connection cut": ("reset", 3),
    "request done, answer 500": ("late", 4),
}
"""What a store's proxy does to a request, and how often it is drawn."""

COMMANDS = {
    "ingest": 10,
    "check": 3,
    "rollup": 4,
    "upkeep": 6,
    "retain apply": 4,
    "audit record": 4,
    "disown": 4,
    "replay": 4,
    "status": 1,
}
"""What is disturbed, and how often it is drawn."""


def is_in_store(number: int) -> bool:
    """Say whether a case's lake lies in an object store: every tenth, since that takes five times as long."""
    return number // LAKE % 10 == 5


@dataclass(frozen=True)
class Case:
    """A command, what goes wrong in it, where (a part of all its operations), and for how many operations."""

    number: int
    command: str
    kind: str
    where: float
    length: int
    rng: random.Random

    @property
    def mask(self) -> int:
        """Classes of operations that it strikes; of a store's requests, all."""
        return KINDS[self.kind][0] if self.kind in KINDS else 0

    @classmethod
    def drawn(cls, seed: int, number: int) -> "Case":
        """Return a case of a seed."""
        rng = random.Random(f"{seed}/{number}")
        command = rng.choices(list(COMMANDS), list(COMMANDS.values()))[0]
        kinds = ANSWERS_OF_STORES if is_in_store(number) else KINDS
        kind = rng.choices(list(kinds), [often for *_, often in kinds.values()])[0]
        longest = rng.randint(2, 6) if is_in_store(number) else rng.choice([rng.randint(2, 30), 10**9])
        length = rng.choice([1, 1, longest])
        return cls(number, command, kind, rng.random(), length, rng)


def build(target: Path) -> None:
    """Compile what fails."""
    command = ["cc", "-O2", "-fPIC", "-shared", "-U_FORTIFY_SOURCE", "-std=gnu11", "-o", str(target)]
    subprocess.run([*command, str(HERE / "faulty.c"), "-ldl"], check=True)


def lake_of(folder: Path, seed: int, numbers: range) -> list[dict]:
    """Run the cases of one lake; return a fact a case, and one for each thing found between them."""
    shim = folder / "faulty.so"
    if not shim.exists():
        build(shim)
    paths = [str(HERE), str(HERE.parent / "support"), *filter(None, [os.environ.get("PYTHONPATH")])]
    more = {"LD_PRELOAD": str(shim), "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(HERE / "faults_child.py"), str(seed), str(numbers.start), str(numbers.stop)]
    with contextlib.ExitStack() as stack:
        if is_in_store(numbers.start):
            command.append(stack.enter_context(moto_server(Path(stack.enter_context(TemporaryDirectory())))))
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **more})
    facts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode:
        at = facts[-1]["case"] if facts else numbers.start
        what = "hung" if "Timeout (" in done.stderr else f"died with {done.returncode}"
        facts.append({"case": at, "found": f"the process {what} in or after this case: {done.stderr[-3000:]}"})
    return facts


def table(outcomes: Counter) -> str:
    """Return lines that say how often each fault met each command, and how that ended: went on/refused, missed."""
    commands = list(COMMANDS)
    lines = [f"{'fault':<31}" + "".join(f"{name:>14}" for name in commands)]
    for kind in (*KINDS, *ANSWERS_OF_STORES):
        cells = [[outcomes[kind, name, how] for how in ("went on", "refused", "missed")] for name in commands]
        lines.append(f"{kind:<31}" + "".join(f"{'{}/{} {}'.format(*cell):>14}" for cell in cells))
    sums = [
        [
            sum(outcomes[kind, name, how] for kind in (*KINDS, *ANSWERS_OF_STORES))
            for how in ("went on", "refused", "missed")
        ]
        for name in commands
    ]
    lines.append(f"{'all':<31}" + "".join(f"{'{}/{} {}'.format(*cell):>14}" for cell in sums))
    return "\n".join(lines)


def campaign(faults: int, seed: int, first: int = 0) -> list[str]:
    """Run until so many faults have struck; print the table; return what was found."""
    outcomes: Counter = Counter()
    found: list[str] = []
    began, number, struck = time.monotonic(), first // LAKE * LAKE, 0
    with TemporaryDirectory(prefix="ranklake-faults-") as scratch:
        while struck < faults:
            for fact in lake_of(Path(scratch), seed, range(number, number + min(LAKE, faults - struck))):
                if "found" in fact:
                    found.append(f"case {fact['case']}: {fact['found']}")
                    print(found[-1], file=sys.stderr, flush=True)
                else:
                    outcomes[fact["kind"], fact["command"], fact["how"]] += 1
                    struck += fact["how"] != "missed"
            number += LAKE
            took = time.monotonic() - began
            print(f"{struck} of {faults} faults by case {number}, {took:.0f} s", file=sys.stderr, flush=True)
    print("went on/refused in one line, and those whose operation never came\n" + table(outcomes))
    print(f"faults: {struck} struck, seed {seed}, {took:.0f} s: {'; '.join(found) or '0 rows lost, 0 rows twice'}")
    return found


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=int, default=900)
    parser.add_argument("--seed", type=int, default=20261122)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--case", type=int)
    given = parser.parse_args()
    if given.case is None:
        return 1 if campaign(given.faults, given.seed, given.first) else 0
    with TemporaryDirectory(prefix="ranklake-faults-") as scratch:
        start = given.case // LAKE * LAKE
        facts = lake_of(Path(scratch), given.seed, range(start, given.case + 1))
    print("\n".join(json.dumps(fact) for fact in facts))
    return 1 if any("found" in fact for fact in facts) else 0


if __name__ == "__main__":
    raise SystemExit(main())
