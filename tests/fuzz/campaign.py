"""Hostile objects, plans and log entries, thousands of them: none stops the lake, none gets out of it, none hides.

    python campaign.py [--first 0] [--cases 10000] [--seed N]      the campaign, or the part that begins at a case
    python campaign.py [--only "damage: log values"]   only cases of one kind, as after what it found was mended
    python campaign.py --seed N --case K               one case of it alone, with what it met

Objects for the spool come some hundred at a time, beside sound segments, into a new lake: `ranklake` ingests them
twice, says its status, answers a query, checks, rolls up and does its upkeep. Damage to a lake's own files comes one at
a time, to a copy of a lake that is in use. A process of its own does it and is watched.

It holds that no command leaves a traceback, that none takes longer than it may, that nothing outside lake and spool is
opened, changed or copied, and that with objects in the spool every command goes on, every sound row is stored once, and
what does not add up is named and of a hostile segment. A damaged lake may be refused, in one line.

A kind that is found wanting is left out of the batches that follow, so that others are still looked at. Exits 1 if
anything was found.
"""

import argparse
import json
import random
import selectors
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import damages
import mutations

BATCH = 60
PATIENCE_S = 600.0
"""What one step may take: a command, with all that lies in the spool, on a machine that others use, too."""
DAMAGED = 0.06
"""The part of the cases that damage a lake's own files: each takes a lake of its own."""
CHILD = Path(__file__).with_name("fuzz_child.py")


def kind_of(seed, number):
    """Return whether a case is of objects or of damage, its kind, and its dice."""
    rng = random.Random(f"{seed}/{number}")
    where = "damage" if rng.random() < DAMAGED else "spool"
    kinds = damages.KINDS if where == "damage" else mutations.KINDS
    kind = rng.choices(list(kinds), [often for _, often in kinds.values()])[0]
    return where, kind, rng


class Child:
    """The process that does it, started anew when it hangs or dies."""

    def __init__(self, seed):
        self.seed = seed
        self.process = None

    def run(self, job, patience_s=PATIENCE_S):
        """Return the findings of a job, a pair of case (or None) and words each; none where all is well."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, str(CHILD), str(self.seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        step = "start"
        with selectors.DefaultSelector() as ready:
            ready.register(self.process.stdout, selectors.EVENT_READ)
            while True:
                if not ready.select(patience_s):
                    self.stop()
                    return [(None, f"{step}: hangs for {patience_s:.0f} s")]
                line = self.process.stdout.readline()
                if not line:
                    code = self.process.wait()
                    self.process = None
                    return [(None, f"{step}: the process died with {code}")]
                said = json.loads(line)
                if "findings" in said:
                    return [tuple(found) for found in said["findings"]]
                step = said["step"]

    def stop(self):
        """End it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Campaign:
    """Runs the cases, and counts what came of them by kind."""

    def __init__(self, seed):
        self.seed = seed
        self.child = Child(seed)
        self.cases, self.bad, self.skipped = Counter(), Counter(), Counter()
        self.findings = {}
        self.unlike = []

    def spool(self, numbers):
        """Put cases of objects into one lake; where something is found, find out which it was."""
        found = self._job(numbers)
        if not found:
            return
        guilty = self._guilty(numbers)
        for number, words in guilty.items():
            self._note(number, words)
        if not guilty:
            self.unlike.append(f"cases {numbers[0]} to {numbers[-1]} together: {found[0][1]}")

    def damage(self, number):
        """Damage a lake."""
        found = self._job([number])
        if found:
            self._note(number, found[0][1])

    def _job(self, numbers):
        where = kind_of(self.seed, numbers[0])[0]
        return self.child.run({"where": where, "cases": numbers})

    def _guilty(self, numbers):
        """Halve the cases until those are left with which alone something is found, one of each kind at most."""
        if len(numbers) == 1:
            found = self._job(numbers)
            return {numbers[0]: found[0][1]} if found else {}
        guilty = {}
        half = len(numbers) // 2
        for part in (numbers[:half], numbers[half:]):
            left = [number for number in part if self._word(number) not in {self._word(one) for one in guilty}]
            if left and self._job(left):
                guilty |= self._guilty(left)
        return guilty

    def _word(self, number):
        where, kind, _ = kind_of(self.seed, number)
        return f"{where}: {kind}"

    def _note(self, number, words):
        self.bad[self._word(number)] += 1
        self.findings[number] = f"{self._word(number)}: {words}"
        print(f"case {number}: {self.findings[number]}", file=sys.stderr, flush=True)

    def run(self, first, cases, only=None):
        """Run the cases from one on that are below `cases`, all or those of one kind."""
        batch = []
        for number in range(first, cases):
            where = kind_of(self.seed, number)[0]
            word = self._word(number)
            if only not in (None, word):
                continue
            if self.bad[word]:
                self.skipped[word] += 1
                continue
            self.cases[word] += 1
            if where == "damage":
                self.damage(number)
            else:
                batch.append(number)
            if batch and (len(batch) == BATCH or number == cases - 1):
                self.spool(batch)
                print(f"{number + 1} of {cases} cases", file=sys.stderr, flush=True)
                batch = []
        if batch:
            self.spool(batch)
        self.child.stop()


def main():
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=20261122)
    parser.add_argument("--case", type=int)
    parser.add_argument("--only", metavar="KIND")
    given = parser.parse_args()
    campaign, began = Campaign(given.seed), time.monotonic()
    if given.case is not None:
        where, kind, _ = kind_of(given.seed, given.case)
        print(f"case {given.case} of seed {given.seed}: {where}: {kind}")
        found = campaign.child.run({"where": where, "cases": [given.case], "keep": True})
        campaign.child.stop()
        print("\n".join(words for _, words in found) or "nothing found")
        return 1 if found else 0
    campaign.run(given.first, given.cases, given.only)
    took = time.monotonic() - began
    done = campaign.cases.total()
    print(f"{'kind':<28}{'cases':>8}{'held':>8}{'found':>8}{'left out':>10}")
    for word in sorted({*campaign.cases, *campaign.skipped}):
        held = campaign.cases[word] - campaign.bad[word]
        print(f"{word:<28}{campaign.cases[word]:>8}{held:>8}{campaign.bad[word]:>8}{campaign.skipped[word]:>10}")
    for number, words in campaign.findings.items():
        print(f"case {number}: {words}")
    for words in campaign.unlike:
        print(words)
    verdict = "nothing found" if not campaign.findings and not campaign.unlike else f"{campaign.bad.total()} found"
    print(f"fuzz: {done:,} cases, seed {given.seed}, {took:.0f} s, {done / took:.1f} a second: {verdict}")
    return 0 if verdict == "nothing found" else 1


if __name__ == "__main__":
    raise SystemExit(main())
