"""Hundreds of injected faults, poison in the spool: no row is lost or twice, no command leaves a traceback or hangs.

    python faults.py [--faults 900] [--seed N]      the campaign
    python faults.py --seed N --case K              the cases of K's lake up to K, with what each met

A case brings segments, most of them with a hostile object beside, draws a command, a fault, and at which of the
command's operations it strikes, and runs the command. It may fail, in one line, or succeed. Every ten cases all is run
undisturbed: then each acknowledged row is in its table or in rejects once, the books add up or name a hostile stream,
the trail is whole, no file is damaged, and nothing outside was touched. Each lake is good for `LAKE` cases, in a
process of its own (`faults_child.py`).

Faults come between the process and libc (`faulty.c`, preloaded), so what Python, Arrow and delta-rs do all goes through
them; only calls on what lies below the lake, its witness and the spool count. Threads of delta-rs take turns as they
like, so a case that is run again may strike a neighbour of the operation that it struck. Not covered: what goes round
libc, object stores (`make chaos-s3` has those), and a page that the disk loses after fsync said that it is there.

Exits 1 if anything was found.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from errno import EACCES, EIO, EMFILE, ENOSPC, ESTALE, ETIMEDOUT
from pathlib import Path

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


@dataclass(frozen=True)
class Case:
    """A command, what goes wrong in it, where (a part of all its operations), and for how many operations."""

    number: int
    command: str
    kind: str
    where: float
    length: int
    rng: random.Random

    @classmethod
    def drawn(cls, seed: int, number: int) -> "Case":
        """Return a case of a seed."""
        rng = random.Random(f"{seed}/{number}")
        command = rng.choices(list(COMMANDS), list(COMMANDS.values()))[0]
        kind = rng.choices(list(KINDS), [often for *_, often in KINDS.values()])[0]
        length = rng.choice([1, 1, 1, rng.randint(2, 30), 10**9])
        return cls(number, command, kind, rng.random(), length, rng)


def build(folder: Path) -> Path:
    """Compile what fails."""
    target = folder / "faulty.so"
    command = ["cc", "-O2", "-fPIC", "-shared", "-U_FORTIFY_SOURCE", "-std=gnu11", "-o", str(target)]
    subprocess.run([*command, str(HERE / "faulty.c"), "-ldl"], check=True)
    return target


def lake_of(shim: Path, seed: int, numbers: range) -> list[dict]:
    """Run the cases of one lake; return a fact a case, and one for each thing found between them."""
    paths = [str(HERE), str(HERE.parent / "support"), *filter(None, [os.environ.get("PYTHONPATH")])]
    more = {"LD_PRELOAD": str(shim), "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(HERE / "faults_child.py"), str(seed), str(numbers.start), str(numbers.stop)]
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
    for kind in KINDS:
        cells = [[outcomes[kind, name, how] for how in ("went on", "refused", "missed")] for name in commands]
        lines.append(f"{kind:<31}" + "".join(f"{'{}/{} {}'.format(*cell):>14}" for cell in cells))
    sums = [
        [sum(outcomes[kind, name, how] for kind in KINDS) for how in ("went on", "refused", "missed")]
        for name in commands
    ]
    lines.append(f"{'all':<31}" + "".join(f"{'{}/{} {}'.format(*cell):>14}" for cell in sums))
    return "\n".join(lines)


def campaign(faults: int, seed: int) -> list[str]:
    """Run until so many faults have struck; print the table; return what was found."""
    outcomes: Counter = Counter()
    found: list[str] = []
    began, number, struck = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory(prefix="ranklake-faults-") as scratch:
        shim = build(Path(scratch))
        while struck < faults:
            for fact in lake_of(shim, seed, range(number, number + min(LAKE, faults - struck))):
                if "found" in fact:
                    found.append(f"case {fact['case']}: {fact['found']}")
                    print(found[-1], file=sys.stderr, flush=True)
                else:
                    outcomes[fact["kind"], fact["command"], fact["how"]] += 1
                    struck += fact["how"] != "missed"
            number += LAKE
            print(f"{struck} of {faults} faults", file=sys.stderr, flush=True)
    print("went on/refused in one line, and those whose operation never came\n" + table(outcomes))
    took = time.monotonic() - began
    print(f"faults: {struck} struck, seed {seed}, {took:.0f} s: {'; '.join(found) or '0 rows lost, 0 rows twice'}")
    return found


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=int, default=900)
    parser.add_argument("--seed", type=int, default=20261122)
    parser.add_argument("--case", type=int)
    given = parser.parse_args()
    if given.case is None:
        return 1 if campaign(given.faults, given.seed) else 0
    with tempfile.TemporaryDirectory(prefix="ranklake-faults-") as scratch:
        start = given.case // LAKE * LAKE
        facts = lake_of(build(Path(scratch)), given.seed, range(start, given.case + 1))
    print("\n".join(json.dumps(fact) for fact in facts))
    return 1 if any("found" in fact for fact in facts) else 0


if __name__ == "__main__":
    raise SystemExit(main())
