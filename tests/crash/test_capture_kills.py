"""Capture under SIGKILL: whatever was acknowledged is in the spool after recovery, once, whenever the kill came."""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from recorded import check_books, gaps, left_in, rows

KILLS = int(os.environ.get("RANKLAKE_KILLS", "30"))
SEED = int(os.environ.get("RANKLAKE_SEED", str(random.SystemRandom().randrange(10**9))))
CHILD = Path(__file__).with_name("capture_child.py")
PHASES = ("record", "rotate", "seal", "keep", "upload")


class Nursery:
    """Runs processes, one at a time, and tells how they ended."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(
        self,
        place,
        mode,
        *,
        phase="record",
        at=0,
        after_ms=0,
        seed=0,
        threads=False,
        forks=False,
        loader=False,
        close=True,
    ):
        """Run one process; return whether it was killed, and what it counted if it was not."""
        job = {
            "mode": mode,
            "phase": phase,
            "at": at,
            "after_ms": after_ms,
            "seed": seed,
            "threads": threads,
            "forks": forks,
            "loader": loader,
            "close": close,
            "run": place.name,
            "spool": str(place / "spool"),
            "local": str(place / "local"),
            "journal": str(place / "journal"),
        }
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        told = json.loads(self.process.stdout.readline())
        assert told["status"] in {0, signal.SIGKILL}, (job, told)
        return told["status"] == signal.SIGKILL, told["events"]

    def close(self):
        """End the nursery."""
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def nursery():
    """Give a nursery."""
    made = Nursery()
    yield made
    made.close()


def acknowledged(place):
    """Return what the journal says: numbers by kind."""
    path = place / "journal"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return {kind: [int(number) for key, number in map(str.split, lines) if key == kind] for kind in
            ("step", "along", "event", "worker", "loader")}  # fmt: skip


def check(place):
    """Assert that all that was acknowledged is there, exactly once, and that nothing was made up."""
    spool, said = place / "spool", acknowledged(place)
    steps = Counter(row["step"] for row in rows(spool, "steps"))
    assert set(steps.values()) <= {1}
    assert set(steps) >= set(said["step"])
    assert len(steps) - len(said["step"]) <= 1  # a step that ended just before the journal was written
    values = Counter((row["metric"], row["step"]) for row in rows(spool, "scalars"))
    assert set(values.values()) <= {1}
    for metric, kind in {"other": "step", "by/handle": "step", "along/a": "along", "along/b": "along",
                         "worker": "worker", "loader": "loader"}.items():  # fmt: skip
        there = {step for name, step in values if name == metric}
        assert there >= set(said[kind]), metric
        writers = 2 if kind == "loader" else 1
        assert len(there) - len(said[kind]) <= writers, metric
    taken = len(said["step"])
    folded = sum(row["agg_count"] for row in rows(spool, "scalars") if row["metric"] == "by/interval")
    drawn = sum(row["count"] for row in rows(spool, "distributions"))
    assert 0 <= folded - taken <= 1
    assert 0 <= drawn - taken <= 1
    spans = Counter((row["name"], row["step"]) for row in rows(spool, "spans"))
    assert set(spans.values()) <= {1}
    assert {step for name, step in spans if name == "step"} >= set(said["step"])
    events = [json.loads(row["attributes"])["number"] for row in rows(spool, "events") if row["event"] == "mark"]
    assert set(events) >= set(said["event"])
    assert len(events) == len(set(events))
    endings = Counter(row["event"] for row in rows(spool, "events") if row["event"] in {"rank_end", "abandoned"})
    assert sum(endings.values()) == (1 if rows(spool, "events") else 0), endings
    assert gaps(spool) == {}
    check_books(spool)
    left = [path for path in left_in(place / "local") if not path.parent.name.startswith(".new-")]
    assert left == []  # but for streams that were never opened, which are swept after an hour


@pytest.mark.crash
def test_killed_capture_loses_and_repeats_nothing(tmp_path, nursery, capsys):
    """After kills at random points of record, seal, upload and recovery, every acknowledged row is stored once."""
    rng = random.Random(SEED)
    with capsys.disabled():
        print(f"\n{KILLS} kills of capture, RANKLAKE_SEED={SEED}")
    most = {}
    kinds = [*itertools.product((False, True), (False, True), (False,)), (False, False, True), (True, False, True)]
    for phase in PHASES:  # once without a kill, to learn how much there is to be killed in
        place = tmp_path / f"count-{phase}"
        place.mkdir()
        _, most[phase] = nursery.run(place, "record", phase=phase, seed=4, threads=True, forks=True)
        assert most[phase] > 100
    kills = Counter()
    round_number = 0
    while kills.total() < KILLS:
        round_number += 1
        place = tmp_path / f"round-{round_number}"
        place.mkdir()
        threads, forks, loader = rng.choice(kinds)
        phase = rng.choice([*PHASES, "time"])
        how = (
            {"after_ms": rng.randint(5, 1000 if loader else 400)}
            if phase == "time"
            else {"phase": phase, "at": rng.randint(1, most[phase])}
        )
        killed, _ = nursery.run(
            place,
            "record",
            seed=rng.random(),
            threads=threads,
            forks=forks,
            loader=loader,
            close=rng.random() < 0.5,
            **how,
        )
        kills[phase] += killed
        while rng.random() < 0.35:
            killed, most["recover"] = nursery.run(
                place, "recover", phase="recover", at=rng.randint(1, max(most.get("recover", 0), 3000))
            )
            kills["recover"] += killed
            most["recover"] = max(most["recover"], 3000)
        nursery.run(place, "recover")
        check(place)
        shutil.rmtree(place)
    with capsys.disabled():
        print(f"{kills.total()} kills in {round_number} rounds: {dict(sorted(kills.items()))}")
