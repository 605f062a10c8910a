"""Faults planted in real runs: each found at its rank and time, with the right cause first; sound runs wake nobody.

    python planted.py PLACE [--short] [--seed N] [--clean 180] [--located 40] [--logs FOLDER]

Real groups of 2 and 8 ranks train the demo's model and record it (`planted_rank.py`). Faults that need no minutes are
planted in runs of some seconds, one after the other; those of hardware and speed in runs side by side, a step of each
in turn for four minutes, on GPUs of a tape of NVML and hosts of files. All of it goes through ingest and rollups, by
the thresholds that everybody has. Not planted, since they take longer or nothing records them: growth of memory, gaps
of five minutes between steps or samples, late checkpoints.

The lake of a fault that was missed, or of a false finding, is kept beside the place. Exits 1 if precision or recall is
below 0.95, a slow rank is found elsewhere in more than 3 % of the runs, or sound runs have more than one finding that
pages.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from fake_hardware import GPU_FAULTS, HOST_FAULTS
from faults_judged import COMPANIONS, EXPECTED, data_time, fixed_thresholds

from ranklake.capture.importers.imports import import_files
from ranklake.lake.contracts.load import contract
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.read import read

HERE = Path(__file__).parent
LOUD = ("warning", "error", "critical")
PAGES = ("error", "critical")
SLACK_S = 65.0
"""What a minute that begins or ends a stretch makes of its start."""
RANKED = {"straggler", "rank_slowdown", "rank_silence", "clock_skew", "version_skew"}


def faults_of(ranks):
    """Return cases without minutes, on 2 or 8 ranks."""
    last, two = ranks - 1, ranks == 2
    made = [
        {"kind": "loss_spike", "length": 3 if two else 1},
        {"kind": "divergence", "value": 100 if two else 300},
        {"kind": "non_finite", "length": 1},
        {"kind": "gradient_spike", "value": 500 if two else 100, "length": 1 if two else 3},
        {"kind": "zero_gradients", "length": 40 if two else 100},
        {"kind": "straggler", "value": 1.0, "rank": last, "at": 20},
        {"kind": "data_stall", "value": 3 if two else 6, "length": 1, "rank": last},
        {"kind": "lr_stuck", "schedule": "linear", "at": 100, "length": 80},
        {"kind": "rank_silence", "rank": last},
        {"kind": "clock_skew", "value": 60 if two else -120, "rank": last},
        {"kind": "version_skew", "rank": last, "at": 0},
        {"kind": "run_failed"},
        {"kind": "checkpoint_failure", "length": 5},
        {"kind": "checkpoint_corrupt", "length": 5},
        {"kind": "checkpoint_duration", "value": 6, "length": 5},
        {"kind": "hang", "value": 8, "rank": last, "length": 1, "settings": {"hang_s": 2}},
    ]
    if two:
        made += [
            {"kind": "loss_spike", "length": 10},
            {"kind": "gradient_spike", "value": 3000, "length": 2},
            {"kind": "zero_gradients", "length": 25},
            {"kind": "straggler", "value": 2.0, "rank": 0, "at": 20},
            {"kind": "data_stall", "value": 5, "length": 1, "rank": 0},
        ]
    cases = [{"name": f"f{ranks}-{n}-{case['kind']}", "seed": 100 * ranks + n, **case} for n, case in enumerate(made)]
    if two:
        name = {"name": "f2-lr_restart", "kind": "lr_restart", "schedule": "linear", "seed": 77, "value": 2.0}
        cases += [{**name, "steps": 120, "at": 10**6}, {**name, "attempt": 1, "first": 120, "at": 120}]
    return cases


def minutes_long(steps):
    """Return cases that are trained side by side, of hardware and speed."""
    begin, length = steps * 5 // 12, steps * 5 // 12
    speed = (("collective_share", 60), ("throughput_drop", 1.2), ("loader_share", 1.2))
    cases = [{"name": f"m-{kind}", "kind": kind, "value": value, "work_s": 0.05, "steps": steps, "at": begin, "seed": n}
             for n, (kind, value) in enumerate(speed)]  # fmt: skip
    return cases + [
        {"name": f"m-{kind}", "kind": kind, "rank": n % 2, "work_s": 0.03, "steps": steps, "at": begin,
         "length": length, "seed": 200 + n, "hardware": True}
        for n, kind in enumerate((*GPU_FAULTS, *HOST_FAULTS, "none"))
    ]  # fmt: skip


def slowdowns(steps, seed):
    """Return cases that are trained side by side, of each of which a rank turns slow in the middle; some recover."""
    drawn = random.Random(seed)
    made = ((1.0, None), (2.0, None), (1.0, steps // 3), (2.0, steps // 3))
    return [{"name": f"slow{n}-rank_slowdown", "kind": "rank_slowdown", "value": value, "rank": drawn.randrange(8),
             "work_s": 0.05, "steps": steps, "at": steps // 2 - (length or 0) // 2, "seed": 300 + n,
             **({"length": length} if length else {})}
            for n, (value, length) in enumerate(made)]  # fmt: skip


def located(count):
    """Return short runs of 8 ranks, one of which is slow, each rank as often."""
    return [{"name": f"slow-{n}", "kind": "straggler", "value": 1.0, "rank": n % 8, "at": 5, "steps": 75, "seed": n}
            for n in range(count)]  # fmt: skip


def sound(count):
    """Return sound runs of many sizes; some of them save."""
    return [
        {"name": f"sound-{n}", "kind": ("none", "checkpoint_none", "none")[n % 3], "at": 10**6,
         "steps": (60, 120, 260, 400)[n % 4], "width": (16, 32, 64)[n % 3], "batch": (4, 8, 16)[n // 2 % 3], "seed": n,
         "schedule": ("constant", "linear")[n % 2], "work_s": (0.0, 0.0, 0.01)[n % 3]}
        for n in range(count)
    ]  # fmt: skip


def fresh(cases, seed):
    """Return cases with the weights, batches and steps of faults of another seed; 0 changes nothing."""
    drawn = random.Random(seed)
    moved = []
    for case in cases:
        shift, at = drawn.randint(-12, 12), case.get("at", 150)
        is_movable = 60 <= at < case.get("steps", 260) and case["kind"] != "lr_restart"
        moved.append({**case, "seed": case["seed"] + 10_000 * seed, **({"at": at + shift} if is_movable else {})})
    return moved if seed else cases


def train(place, name, ranks, cases, every_s=0.0):
    """Train cases in one group of ranks. Raises `SystemExit` if it fails."""
    out = place / "out" / name
    out.mkdir(parents=True)
    plan = {"cases": cases, "spool": str(place / "spool"), "local": str(place / "local"), "out": str(out),
            "every_s": every_s}  # fmt: skip
    (out / "plan.json").write_text(json.dumps(plan))
    began = time.monotonic()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
               str(HERE / "planted_rank.py"), str(out / "plan.json")]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent / "support")}
    with (out / "train.log").open("wb") as log:
        done = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: the ranks failed: {(out / 'train.log').read_text()[-2000:]}")
    print(f"{name}: {len(cases)} runs of {ranks} ranks in {time.monotonic() - began:.0f} s", flush=True)


def rolled_up(place):
    """Ingest and roll up by the commands; return the lake, and the seconds that each took."""
    took = {}
    for command in (["ingest", "--spool", str(place / "spool")], ["rollup", "incidents"]):
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "ranklake", *command, "--lake", str(place / "lake")], check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
        took[command[0]] = time.monotonic() - began
    return Lake.open(str(place / "lake")), took


def rows_of(lake, table):
    """Return a table's rows."""
    return read(lake.tables, contract(table)).to_pylist()


@dataclass
class Verdict:
    """What became of one planted fault."""

    name: str
    kind: str
    is_found: bool
    is_first: bool
    data_s: float | None
    why: str = ""


class Judge:
    """Compares findings and incidents with what was planted."""

    def __init__(self, place, lake, cases):
        self.cases = {case["name"]: case for case in cases}  # of attempts, the last
        self.begun = defaultdict(dict)
        for file in place.glob("out/*/rank-*.jsonl"):
            for line in map(json.loads, file.read_text().splitlines()):
                if line["begun"] is not None:
                    self.begun[line["run"]][line["rank"]] = line["begun"]
        findings = rows_of(lake, "run_findings") + rows_of(lake, "node_findings")
        self.findings = [row for row in findings if row["severity"] in LOUD]
        self.incidents = rows_of(lake, "incidents")
        self.steps = read(lake.tables, contract("step_rollup"))

    def verdict(self, case):
        """Return whether a fault was found where and when it is."""
        rows = [
            row for row in self.findings if row["run"] == case["name"] and row["detector"] in EXPECTED[case["kind"]]
        ]
        right = [row for row in rows if self._is_there(row, case) and self._is_then(row, case)]
        firsts = {json.loads(row["causes"])[0] for row in self.incidents
                  if row["run"] == case["name"] and json.loads(row["causes"])}  # fmt: skip
        runbooks = {row["runbook"] for row in right}
        data_s = data_time(right[0], case, self.steps, self.begun[case["name"]]) if right else None
        why = "" if right else f"{[(row['detector'], row['rank'], row['step'], row['message']) for row in rows]}"
        return Verdict(case["name"], case["kind"], bool(right), bool(firsts & runbooks), data_s, why)

    def _is_there(self, row, case):
        rank = case.get("rank")
        if rank is None or not (case.get("hardware") or row["detector"] in RANKED):
            return True
        return rank == row["rank"] if row["rank"] is not None else (row["host"] or "").endswith(f"-node{rank}")

    def _is_then(self, row, case):
        if row["step"] is not None and row["detector"] != "hang":
            return -1 <= row["step"] - case.get("at", 150) <= 16 and self._ends_then(row, case)
        if row["detector"] == "straggler":
            return True
        begun = min(self.begun[case["name"]].values(), default=0.0)
        shift = case["value"] if case["kind"] == "clock_skew" else 0.0
        moments = [row["start_ts"].timestamp() - begun, row["start_ts"].timestamp() - begun - shift]
        return min(map(abs, moments)) <= SLACK_S

    def _ends_then(self, row, case):
        """Return whether a rank that recovers is slow until it does."""
        if row["detector"] != "rank_slowdown" or "length" not in case:
            return True
        return abs(row["end_step"] - case["at"] - case["length"]) <= 16

    def false(self):
        """Return findings that nothing planted in their run explains."""
        return [row for row in self.findings if not self._explained(row)]

    def _explained(self, row):
        case = self.cases.get(row["run"])
        if case is None:
            return False
        kind = case["kind"]
        own = row["detector"] in EXPECTED.get(kind, ()) and self._is_there(row, case)
        return own or row["detector"] in COMPANIONS.get(kind, ())


def score(found, planted, false):
    """Return precision, recall and their harmonic mean."""
    precision, recall = found / max(1, found + false), found / planted
    return precision, recall, 2 * precision * recall / max(1e-9, precision + recall)


def judge_faults(place, cases):
    """Judge one lake of planted faults; print, and return whether it is good enough."""
    lake, took = rolled_up(place)
    judge = Judge(place, lake, cases)
    planted = [case for case in judge.cases.values() if "none" not in case["kind"]]
    verdicts = [judge.verdict(case) for case in planted]
    for each in verdicts:
        late = "" if each.data_s is None else f"{each.data_s:7.1f} s of data"
        marks = f"{'found' if each.is_found else 'MISSED'}{'' if each.is_first else ', another cause first'}"
        print(f"  {each.name:28} {late:18} {marks} {each.why}")
    false = judge.false()
    for row in false:
        print(f"  FALSE {row['severity']} {row['detector']}: {row['message']}")
    found, firsts = sum(each.is_found for each in verdicts), sum(each.is_first for each in verdicts)
    values = score(found, len(planted), len(false))
    print(f"{len(planted)} faults: precision {values[0]:.3f}, recall {values[1]:.3f}, F1 {values[2]:.3f}; "
          f"the right cause first in {firsts}; rollup {took['rollup']:.1f} s")  # fmt: skip
    base = score(*fixed_thresholds(lake, judge.cases))
    print(f"fixed thresholds: precision {base[0]:.3f}, recall {base[1]:.3f}, F1 {base[2]:.3f}")
    by_kind = defaultdict(list)
    for each in verdicts:
        if each.data_s is not None:
            by_kind[each.kind].append(each.data_s)
    print("data from the first bad step to the finding, s:",
          ", ".join(f"{kind} {max(times):.1f}" for kind, times in sorted(by_kind.items())))  # fmt: skip
    if found < len(planted) or false:
        kept = shutil.copytree(place, f"{str(place.parent).rstrip('/')}-missed", dirs_exist_ok=True)
        print(f"what was missed or false: {kept}/lake")
    return min(values[:2]) >= 0.95 and firsts >= 0.95 * found


def judge_located(place, count):
    """Judge where the slow ranks were found."""
    lake, _ = rolled_up(place)
    named = defaultdict(set)
    for row in rows_of(lake, "run_findings"):
        if row["detector"] == "straggler":
            named[row["run"]].add(row["rank"])
    right = sum(named[f"slow-{n}"] == {n % 8} for n in range(count))
    print(f"slow rank: named alone in {right} of {count} runs of 8 ranks")
    return right >= 0.97 * count


def judge_sound(place, logs):
    """Judge sound runs, and real logs beside them."""
    for number, (kind, file) in enumerate(logs):
        import_files(kind, [str(file)], str(place / "spool"), run=f"log-{number}")
    lake, _ = rolled_up(place)
    rows = rows_of(lake, "run_findings") + rows_of(lake, "node_findings")
    counts = Counter((row["severity"], row["detector"]) for row in rows)
    runs = len({row["run"] for row in rows_of(lake, "attempt_facts")})
    paging = [row for row in rows if row["severity"] in PAGES]
    print(f"{runs} sound runs: {len(paging)} findings that page; {dict(counts)}")
    for row in paging:
        print(f"  FALSE {row['severity']} {row['detector']}: {row['message']}")
    return len(paging) <= 1


def main():
    """Train, judge, print; 1 if anything is not good enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", type=Path)
    parser.add_argument("--short", action="store_true", help="five faults on two ranks, and three sound runs")
    parser.add_argument("--seed", type=int, default=0, help="of weights, batches and the faults' steps")
    parser.add_argument("--parts", default="faults,sound,located")
    parser.add_argument("--groups", default="two,eight,minutes,slow", help="of the faults")
    parser.add_argument("--only", default="", help="faults whose name has this")
    parser.add_argument("--clean", type=int, default=180)
    parser.add_argument("--located", type=int, default=40)
    parser.add_argument("--logs", type=Path, help="folder with megatron_logs and mlperf; see tests/support")
    asked = parser.parse_args()
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    verdicts = []
    if asked.short:
        kinds = {"non_finite", "straggler", "rank_silence", "checkpoint_corrupt", "version_skew"}
        cases = [case for case in faults_of(2) if case["kind"] in kinds][:5] + sound(3)
        train(asked.place, "short", 2, cases)
        return 0 if judge_faults(asked.place, cases) else 1
    parts = asked.parts.split(",")
    if "faults" in parts:
        place = asked.place / "faults"
        groups = {
            "two": (2, faults_of(2), 0.0),
            "eight": (8, faults_of(8), 0.0),
            "minutes": (2, minutes_long(156), 1.5),
            "slow": (8, slowdowns(150, asked.seed), 1.0),
        }
        groups = {name: (ranks, fresh(cases, asked.seed), every_s) for name, (ranks, cases, every_s) in groups.items()
                  if name in asked.groups.split(",")}  # fmt: skip
        groups = {name: (ranks, chosen, every_s) for name, (ranks, cases, every_s) in groups.items()
                  if (chosen := [case for case in cases if asked.only in case["name"]])}  # fmt: skip
        for name, (ranks, cases, every_s) in groups.items():
            train(place, name, ranks, cases, every_s)
        verdicts.append(judge_faults(place, [case for _, cases, _ in groups.values() for case in cases]))
    if "sound" in parts:
        place = asked.place / "sound"
        cases = fresh(sound(asked.clean), asked.seed)
        train(place, "two", 2, cases)
        train(place, "eight", 8, [{**case, "name": f"eight-{case['name']}"} for case in cases[: asked.clean // 9]])
        logs = [] if asked.logs is None else [
            *(("megatron", file) for file in sorted(asked.logs.glob("megatron_logs/*.out.gz"))),
            *(("mlperf", file) for file in sorted(asked.logs.glob("mlperf/**/result_*.txt.gz")))]  # fmt: skip
        verdicts.append(judge_sound(place, logs))
    if "located" in parts:
        train(asked.place / "located", "located", 8, fresh(located(asked.located), asked.seed))
        verdicts.append(judge_located(asked.place / "located", asked.located))
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
