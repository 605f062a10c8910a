"""Retries ingest tasks that killed their worker, in parts, until the segments to blame are alone.

a task that died ─▶ halves of its slot files, each in a process that may die ─▶ … ─▶ a slot file that dies each time
                                   └──▶ the sound ones come in                              └──▶ quarantine/

Each try is marked (`ranklake.lake.plans.attempts`), so that who dies with it is followed by one who goes on from there.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ranklake.lake.ingest.group import Compacted, Group, as_one
from ranklake.lake.ingest.task import compact, set_aside, slot_files
from ranklake.lake.plans.attempts import segments_digest
from ranklake.lake.plans.subprocess_workers import InSubprocess
from ranklake.lake.plans.workers import InProcess, WorkersError
from ranklake.lake.store.planned_segment import PlannedSegment

if TYPE_CHECKING:
    from ranklake.lake.plans.attempts import Attempts
    from ranklake.lake.plans.workers import Workers

TRIES: Final = 3
UNSEEN_TRIES: Final = 20
"""Tries at one slot file of drivers that died themselves: nobody saw of what."""
DEADLY: Final = "killed whoever read it, or took all memory, each time"


class Careful:
    """Carries out tasks that may kill.

    Parameters
    ----------
    workers
        Whose processes may die: those of a cluster, else one is started for each try.
    """

    def __init__(self, workers: "Workers", attempts: "Attempts") -> None:
        self._workers = InSubprocess() if isinstance(workers, InProcess) else workers
        self._attempts = attempts

    def carry_out(self, group: Group) -> Compacted:
        """Carry out a task; raises what its segments are not to blame for."""
        files = slot_files(group.segments)
        if len(files) > 1:
            what = segments_digest(group.segments)
            done = None if self._attempts.times_begun(what) or self._attempts.times_died(what) else self._tried(group)
            if done is not None:
                return done
            middle = len(files) // 2
            halves = [[row for file in some for row in file] for some in (files[:middle], files[middle:])]
            return as_one([self.carry_out(replace(group, segments=some)) for some in halves])
        if (done := self._last_tried(group)) is not None:
            return done
        # Cuts of one slot file repeat each other, so those that live go in together.
        good = [row for row in group.segments if len(group.segments) > 1 and self._lives(group, row)]
        bad = [row for row in group.segments if row not in good]
        self._check(group)
        if not bad or not good:
            return set_aside(group, DEADLY)
        return as_one([self.carry_out(replace(group, segments=good)), set_aside(replace(group, segments=bad), DEADLY)])

    def _lives(self, group: Group, row: PlannedSegment) -> bool:
        return self._last_tried(replace(group, segments=[row])) is not None

    def _last_tried(self, group: Group) -> Compacted | None:
        """Return what came of a task that is tried over and over; None if it died each time."""
        what = segments_digest(group.segments)
        while self._attempts.times_died(what) < TRIES and self._attempts.times_begun(what) < UNSEEN_TRIES:
            done = self._tried(group)
            if done is not None:
                return done
        return None

    def _tried(self, group: Group) -> Compacted | None:
        what = segments_digest(group.segments)
        with self._attempts.at(what):
            (done,) = self._workers.run(attempted, [group], lost=_nothing)
            if done is None:
                self._attempts.record_death(what)
        return done

    def _check(self, group: Group) -> None:
        """Raise `WorkersError` where workers die at nothing at all: then no segment is to blame."""
        (done,) = self._workers.run(attempted, [replace(group, segments=[])], lost=_nothing)
        if done is None:
            raise WorkersError("workers die at an empty task", hint="look at their memory and logs; run it again")


def attempted(group: Group) -> Compacted | None:
    """Carry out a task, for workers that give None for what killed them."""
    return compact(group)


def _nothing(_: Group) -> Compacted | None:
    return None
