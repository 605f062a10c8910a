"""Campaign of kills over retention: its steps (`STEPS`) die at random moments, and are run again.

Each round brings rows, has a step proposed and approved, kills it a few times, lets it end, and looks: no row is lost
but those that were to go, none comes back, what a hold is about stays, archives verify, books and trail add up.
"""

import argparse
import math
import multiprocessing
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pyarrow as pa
import retention_child
from archiving import policies_in
from governed import Site, any_rows
from keyed import section
from retaining import APPROVER, CONTRACTS, TODAY
from segments import step_rows

from ranklake.insight.ask import ask
from ranklake.lake.audit.proof import prove
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.retention.archive import rehydration
from ranklake.retention.archive.register import archives, examine
from ranklake.retention.archive.rehydrated import rehydrated_archives
from ranklake.retention.erasure.apply import approve as approve_erasure
from ranklake.retention.erasure.plan import make_plan as make_erasure
from ranklake.retention.erasure.search import search
from ranklake.retention.erasure.subject import Reach, subject_of
from ranklake.retention.holds.holds import set_hold
from ranklake.retention.plans.apply import apply, approve
from ranklake.retention.plans.plan import make_plan
from ranklake.retention.plans.removals import removal_faults
from ranklake.retention.proposals.kept import kept_plans
from ranklake.retention.subjects.store import KeyStore, key_state

STEPS = ("apply", "cancel", "purge", "archive", "rehydrate", "erase", "forget")
GRACE_DAYS = 7
COLD_AGES = range(12, 30)
"""Ages in days at which rows move to the archive, and do not go for good by the policies that come with ranklake."""
RULES = (
    "going: {where: {table: steps}, delete_after_days: 30, reason: old}",
    "cold: {where: {table: logs}, archive: {after_days: 10, to: TO}, reason: old}",
)
ROWS = 40
ROUNDS = 6
"""Of a lake, before another begins: an erasure looks through all that there is, and kills are to be many."""


class Campaign:
    """A lake in a folder, and the kills."""

    def __init__(self, folder: Path, killed: Counter[str], seed: int) -> None:
        folder.mkdir()
        self.site = Site(folder)
        self.site.lake = self.site.lake.configured(subjects=section(folder, copies=1))
        self.folder, self.killed, self.chance = folder, killed, random.Random(seed)
        self.policies = policies_in(folder, *RULES)
        shutil.copytree(folder / "policies", folder / "keeping")
        more = folder / "keeping/more.yaml"
        more.write_text(more.read_text().replace("version: 1", f"version: 1\ngrace_days: {GRACE_DAYS}"))
        self.rounds = 0
        self.length_s = dict.fromkeys(STEPS, 0.5)
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["__main__", "retention_child"])  # who dies needs no imports of its own
        self.person = ""
        self.taken: list[set[str]] = []

    def bring(self, table: str, age: int, run: str, messages: list[str] | None = None) -> None:
        """Ingest rows of a date; `messages` are of logs, of runs their users."""
        self.rounds += 1
        start = datetime(TODAY.year, TODAY.month, TODAY.day, tzinfo=UTC) - timedelta(days=age)
        own = {"run": run, "incarnation": 1000 + self.rounds, "start": start}
        rows = step_rows(ROWS, **own) if table == "steps" else _texts(table, messages or [], own)
        self.site.bring(rows, table, run=run, incarnation=1000 + self.rounds)

    def run(self, is_enough: Callable[[], bool]) -> None:
        """Go through all steps, some times, or until those that die died often enough."""
        self.bring("logs", 400, "held", ["evidence"] * 5)
        until = TODAY + timedelta(days=99)
        set_hold(self.site.lake, ["table=logs", "run=held"], "a case", until, "Lee Gal")
        for _ in range(ROUNDS):
            for kind in STEPS:
                getattr(self, kind)()
            if is_enough():
                return

    def apply(self) -> None:
        """Have rows of a date go for good."""
        self.bring("steps", 60 + self.rounds, "gone")
        self._to_the_end("apply", self._planned(), self.chance.choice(["policies", "keeping"]))
        assert not self.site.rows("steps")

    def cancel(self) -> None:
        """Bring rows back that an application keeps."""
        self.bring("steps", 60 + self.rounds, "back")
        before = self.site.keys()
        name = self._kept()
        assert not self.site.rows("steps")
        self._to_the_end("cancel", name)
        assert self.site.keys() == before

    def purge(self) -> None:
        """Delete all that is kept, what was brought back and went again among it."""
        self._kept()
        self._to_the_end("purge", str(GRACE_DAYS + 1))
        assert kept_plans(self.site.lake.tables) == []
        assert not self.site.rows("steps")
        there = {path.name for path in (self.folder / "lake/tables/steps").rglob("*.parquet")}
        old = {path.rpartition("/")[2] for one in self.taken for path in one}
        assert not there & old

    def _kept(self) -> str:
        """Have what is due go, and be kept; return the plan's name."""
        name = self._planned()
        keeping = replace(self.policies, grace_days=GRACE_DAYS)
        apply(self.site.lake, name, "Otto Operator", CONTRACTS, keeping)
        self.taken.append({file.path for one in kept_plans(self.site.lake.tables) for file in one.files})
        return name

    def archive(self) -> None:
        """Have rows of a date move."""
        person = f"person{self.rounds}@example.org"
        age = COLD_AGES[self.rounds % len(COLD_AGES)]
        self.bring("logs", age, "cold", [f"mail {person}", *["by nobody"] * (ROWS - 1)])
        before = sum(one.rows for one in archives(self.site.lake.tables))
        self._to_the_end("archive", self._planned())
        assert sum(one.rows for one in archives(self.site.lake.tables)) == before + ROWS
        assert {row["run"] for row in self.site.rows("logs")} == {"held"}
        self.person = person

    def rehydrate(self) -> None:
        """Bring all back that is archived."""
        some = archives(self.site.lake.tables)
        until = TODAY + timedelta(days=self.chance.randint(1, 300))
        made = rehydration.write_down(self.site.lake, some, until, "Ann Author")
        rehydration.approve(self.site.lake, made.name, APPROVER)
        self._to_the_end("rehydrate", made.name)
        (back,) = [one for one in rehydrated_archives(self.site.lake.store) if one.name == made.name]
        assert back.rows == sum(one.rows for one in some)
        found = ask(self.site.lake, "SELECT count(*) AS n FROM logs", rehydrated=True).rows.to_pylist()
        assert found[0]["n"] >= back.rows + 5

    def erase(self) -> None:
        """Take a person out of the archive and from what came back."""
        before = sum(one.rows for one in archives(self.site.lake.tables))
        reach = Reach(self.site.lake, self._spool())
        subject = subject_of(self.site.lake, [self.person])
        made = make_erasure(reach, subject)
        approve_erasure(self.site.lake, made.name, APPROVER)
        self._to_the_end("erase", f"{made.name} {self.person}")
        assert sum(one.rows for one in archives(self.site.lake.tables)) == before - 1
        assert search(self.site.lake, self._spool(), [self.person]).traces == ()

    def forget(self) -> None:
        """Forget the key of a person; of the other ones each value is as it was, and no row goes."""
        person, *others = (f"user{self.rounds}{name}@example.org" for name in ("", "-stays", "-too"))
        for who in ([person] * ROWS, others):
            self.bring("runs", 5, "sealed", who)
        before = self._users()
        made = make_erasure(Reach(self.site.lake, self._spool()), subject_of(self.site.lake, [person]))
        approve_erasure(self.site.lake, made.name, APPROVER)
        self._to_the_end("forget", f"{made.name} {person}")
        before[None] += before.pop(person)
        assert self._users() == before
        store = KeyStore(self.site.lake)
        assert (store.find(person), store.places_with_keys([person])) == (None, [])
        assert key_state(self.site.lake).is_sound
        assert search(self.site.lake, self._spool(), [person]).traces == ()

    def _users(self) -> Counter[str | None]:
        """Count rows by user, as far as a key is there."""
        rows = ask(self.site.lake, 'SELECT unsealed("user") AS who FROM runs').rows.to_pylist()
        return Counter(row["who"] for row in rows)

    def _planned(self) -> str:
        made = make_plan(self.site.lake, CONTRACTS, self.policies, TODAY)
        assert made is not None
        approve(self.site.lake, made.name, APPROVER, "as agreed")
        return made.name

    def _spool(self) -> Spool:
        return Spool(str(self.site.spool))

    def _to_the_end(self, kind: str, name: str, place: str = "policies") -> None:
        """Kill a step some times at random if it is one of those that die, then let it end; look at all."""
        step = (self.site.lake.uri, str(self.site.spool), str(self.folder / place), kind, name)
        for _ in range(self.chance.randint(2, 5) if kind in self.killed else 0):
            child = self._started(*step)
            child.join(self.chance.random() * self.length_s[kind])
            child.kill()
            child.join()
            assert child.exitcode in {0, -signal.SIGKILL}, f"{kind} ended with {child.exitcode}"
            self.killed[kind] += child.exitcode == -signal.SIGKILL
        began = time.monotonic()
        child = self._started(*step)
        child.join(300)
        assert child.exitcode == 0, f"{kind} ended with {child.exitcode}"
        self.length_s[kind] = max(0.05, time.monotonic() - began)
        self._look()

    def _started(self, *step: str) -> ForkServerProcess:
        child = self.context.Process(target=retention_child.step, args=step)
        child.start()
        return child

    def _look(self) -> None:
        lake = self.site.lake
        assert removal_faults(lake) == []
        assert prove(lake).whole
        self.site.balances()
        assert len([row for row in self.site.rows("logs") if row["run"] == "held"]) == 5
        assert [why for one in examine(lake.store, archives(lake.tables)) for why in one.faults] == []


def _texts(table: str, texts: list[str], own: dict[str, Any]) -> pa.Table:
    """Return rows of logs with messages, or of runs with users."""
    name = {"logs": "message", "runs": "user"}[table]
    return any_rows(table, len(texts), **{name: texts}, **own)


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=100, help="kills of each step at least")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS, help="which die; the others just end")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which no further round begins")
    parser.add_argument("--seed", type=int, default=20261124)
    told = parser.parse_args()
    began, segments = time.monotonic(), 0
    killed = Counter(dict.fromkeys(told.steps, 0))

    def is_enough() -> bool:
        return min(killed.values()) >= told.kills or time.monotonic() - began >= 60 * told.minutes

    for number in count():
        lake = Campaign(told.folder / str(number), killed, told.seed + number)
        lake.run(is_enough)
        segments += lake.rounds
        kills = ", ".join(f"{kind} {times}" for kind, times in killed.items())
        said = f"kills: {kills}; {number + 1} lakes, {segments} segments, {time.monotonic() - began:,.0f} s"
        if is_enough():
            print(f"{said}: holds")
            return
        print(said, file=sys.stderr, flush=True)
        shutil.rmtree(lake.folder)


if __name__ == "__main__":
    main()
