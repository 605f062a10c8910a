"""A process for `test_native.py`: makes calls that a seed chooses, and prints what was recorded but for the times."""

import json
import random
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
from recorded import rows

from ranklake import capture

NAMES = [f"diff/m{n}" for n in range(24)]
VALUES = [0.5, -3, True, 1 << 40, 10**400, float("nan"), float("inf"), np.float32(1.5), np.float64(2.5), np.int64(7),
          Decimal("1.25"), "text", None, 1j, [1.0], np.ones(1), np.ones(2)]  # fmt: skip
STEPS = [None, 0, 5, -2, 1 << 62, 1 << 70, -(1 << 63), 2.0, 2.5, "7", True, np.int64(9)]
DROPPED = {"ts", "date", "run", "attempt", "rank", "incarnation", "segment", "slot", "duration_ns", "step_time_s"}


def value(rng):
    """Draw a value, an ordinary one more often than not."""
    return rng.random() if rng.random() < 0.8 else rng.choice(VALUES)


def calls(run, rng, handles, depth=0):
    """Make some calls."""
    for _ in range(rng.randint(1, 6)):
        kind = rng.randrange(6 if depth < 4 else 4)
        step = rng.choice(STEPS) if rng.random() < 0.2 else rng.randrange(100)
        chosen = rng.sample(NAMES, rng.choice([1, 2, 3, 10, 17]))
        if rng.random() < 0.7:
            chosen.sort()
        mapping = {name: value(rng) for name in chosen}
        if kind == 0:
            given = rng.choice([(), (step,)])
            rng.choice(handles).add(value(rng), *given)
        elif kind == 1:
            run.log(mapping)
        elif kind == 2:
            run.log(mapping, step=step)
        elif kind == 3:
            run.log(step=step, loss=value(rng), **{name.replace("/", "_"): v for name, v in mapping.items()})
        elif kind == 4:
            with run.phase(rng.choice(["forward", "backward", "own", "data"])):
                calls(run, rng, handles, depth + 1)
        else:
            take_step(run, rng, handles, depth)


def take_step(run, rng, handles, depth):
    """Take a step, which fails now and then."""
    try:
        with run.step(rng.randrange(100) if rng.random() < 0.9 else rng.choice(STEPS), tokens=8):
            calls(run, rng, handles, depth + 1)
            if rng.random() < 0.1:
                int("a step that fails")
    except ValueError:
        return


def plain(row):
    """Return what must not depend on who wrote the row: no times, and no numbers of rows and spans."""
    kept = {name: item for name, item in sorted(row.items()) if name not in DROPPED}
    return {name: repr(item is None) if name.endswith("_time_s") else repr(item) for name, item in kept.items()}


def main():
    """Record by the seed given, and print."""
    seed, folder = int(sys.argv[1]), Path(sys.argv[2])
    rng = random.Random(seed)
    with capture.start(run="diff", spool=folder / "spool", local_dir=folder / "local", seal_every_s=0.05) as run:
        handles = [run.scalar(name) for name in NAMES[:4]]
        for _ in range(150):
            calls(run, rng, handles)
    tables = ("steps", "scalars", "spans", "events")
    found = {
        table: sorted(json.dumps(plain(row)) for row in rows(folder / "spool", table) if row.get("event") != "gap")
        for table in tables  # gaps are told of whenever files are sealed; what matters is their sum
    }
    print(json.dumps({"rows": found, "gaps": run.gaps()}, sort_keys=True))


if __name__ == "__main__":
    main()
