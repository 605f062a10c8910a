"""Runs one rollup: computes what is due, and replaces the dates whose result changed."""

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.delta.commit import replace_partitions
from ranklake.lake.delta.integrity import Damage, DamagedFileError, damaged
from ranklake.lake.plans.units import Unit, carry_out, counted
from ranklake.lake.query.sql import session
from ranklake.lake.rollups.declaration import Rollup
from ranklake.lake.rollups.due import Due
from ranklake.lake.rollups.evaluate import evaluate_day, evaluate_days, evaluate_runs
from ranklake.lake.rollups.inputs import ABSENT, Key, Snapshot, day_of, partition
from ranklake.lake.rollups.lineage import Lineage, commit_metadata
from ranklake.lake.rollups.pieces import AT_ONCE, WHOLE_RANGE, Range, ranges

if TYPE_CHECKING:
    from ranklake.lake.storage.store import Lake

BATCH_ROWS: Final = 2_000_000
"""Rows after which computed dates are committed, so that memory does not grow with the number of dates."""
MOST_ROWS: Final = 500_000
"""Rows of inputs that dates in a row may have together: planning queries for a date of few costs more than they."""
MOST_DAYS: Final = 64


class Work:
    """One rollup being brought up to date: what was computed and waits for its commit, and what was committed."""

    def __init__(
        self,
        lake: "Lake",
        rollup: Rollup,
        inputs: Mapping[str, Snapshot],
        output: Snapshot,
        lineage: Lineage,
        *,
        anyway: bool = False,
    ) -> None:
        self.anyway = anyway  # whether dates that come out as they were are replaced, too
        self.lake, self.rollup, self.inputs = lake, rollup, inputs
        self.contract = rollup.contract
        self.output, self.lineage = output, lineage
        self.version = output.version
        self.replaced: list[date] = []
        self.computed = self.rows = 0
        self.damaged: list[Damage] = []
        self._waiting: dict[date, pa.Table] = {}
        self._state: dict[str, dict[Key, str]] = {}

    def days(self, due: Mapping[date, dict[Key, str]]) -> None:
        """Compute dates of a partition rollup."""
        groups = list(self._groups(due))
        while groups:
            dates = tuple(day for group in groups for day in group)
            unit = Unit("compute", self.rollup.name, dates, reads=self.rollup.tables)
            done = carry_out(unit, partial(self._compute_some, groups))
            self._commit()
            groups = groups[done:]

    def _compute_some(self, groups: "Sequence[Mapping[date, dict[Key, str]]]") -> int:
        """Compute groups of dates until there are rows enough for a commit; return how many were computed."""
        self._waiting, self._state = {}, {}  # of an earlier try
        for done, group in enumerate(groups, 1):
            self._compute(group)
            if sum(rows.num_rows for rows in self._waiting.values()) >= BATCH_ROWS:
                return done
        return len(groups)

    def _groups(self, due: Mapping[date, dict[Key, str]]) -> Iterator[dict[date, dict[Key, str]]]:
        """Yield dates that are computed at once: one, or as many in a row as the rollup takes and memory allows."""
        group: dict[date, dict[Key, str]] = {}
        rows = 0
        leads = [self.inputs[item.table] for item in self.rollup.inputs[: self.rollup.leads]]
        for day, inputs in sorted(due.items()):
            read = {(table, day_of(name)) for table, name in inputs if name}
            files = [one.files([at]) for one in leads for name, at in read if name == one.table]
            more = sum(pc.sum(some["num_records"]).as_py() or 0 for some in files)
            in_a_row = self.rollup.in_a_row and day - timedelta(1) in group and len(group) < MOST_DAYS
            if group and not (in_a_row and rows + more <= MOST_ROWS):
                yield group
                group, rows = {}, 0
            group[day] = inputs
            rows += more
        if group:
            yield group

    def _compute(self, group: Mapping[date, dict[Key, str]]) -> None:
        """Compute dates at once; where an input is damaged, each that does not need it by itself."""
        read_days: dict[str, set[date]] = {}
        for day, inputs in group.items():
            for item in self.rollup.inputs:
                days = item.days(day)
                if item.reach == "over":
                    days = tuple(day_of(name) for table, name in inputs if table == item.table)
                if days is not None:
                    read_days.setdefault(item.table, set()).update(days)
        live = {name: one.files(read_days.get(name)) for name, one in self.inputs.items()}
        bad = [one for name, some in live.items() for one in damaged(self.lake, name, some)]
        if bad and len(group) > 1:
            for day, inputs in group.items():
                self._compute({day: inputs})
        elif bad:
            self.damaged += bad
        else:
            self._evaluate(sorted(group), live)
            self._state |= {partition(day): inputs for day, inputs in group.items()}

    def _evaluate(self, days: Sequence[date], live: Mapping[str, pa.Table]) -> None:
        pieces, at_once = self._pieces(days[0])
        # a query in one partition brings no partial results together: pieces side by side take up to a fifth less
        threads = max(1, (os.cpu_count() or 1) // at_once)
        ctx = session(self.lake, self.rollup.tables, live=live, threads=threads, heavy=True)
        if self.rollup.in_a_row:
            rows = evaluate_days(ctx, self.rollup, days[0], days[-1])
            self._waiting |= {day: rows.filter(pc.equal(rows["date"], pa.scalar(day, pa.date32()))) for day in days}
        else:
            self._waiting[days[0]] = evaluate_day(ctx, self.rollup, days[0], pieces, at_once)

    def _pieces(self, day: date) -> tuple[Sequence[Range], int]:
        """Return the ranges in which the rollup's column `cut` is computed on a date, and how many at once."""
        if not self.rollup.cut:
            return (WHOLE_RANGE,), 1
        at_once = min(os.cpu_count() or 1, AT_ONCE)
        found = ranges(self.inputs[self.rollup.inputs[0].table].files([day]), self.rollup.cut, at_once=at_once)
        return found, min(at_once, len(found))

    def runs(self, due: Due | None) -> None:
        """Compute whole runs of a run rollup; what else lies in their output dates stays."""
        if due is None:
            return
        unit = Unit("compute", self.rollup.name, detail=counted(len(due.starts), "run"), reads=self.rollup.tables)
        carry_out(unit, partial(self._compute_runs, due))
        self._commit()

    def _compute_runs(self, due: Due) -> None:
        live = {name: one.files_of(due.starts) for name, one in self.inputs.items()}  # sound, or they were not due
        ctx = session(self.lake, self.rollup.tables, live=live)
        rows = evaluate_runs(ctx, self.rollup, due.starts)
        days = sorted({*due.starts.values(), *due.old_days, *rows["date"].unique().to_pylist()})
        others = self.output.rows(self.lake, days=days, verify=True)
        others = others.filter(
            pc.invert(pc.is_in(others["run"], value_set=pa.array(sorted(due.replaced), pa.string())))
        )
        rows = pa.concat_tables([rows, others])
        self._waiting = {day: rows.filter(pc.equal(rows["date"], pa.scalar(day, pa.date32()))) for day in days}
        self._state = {"": due.inputs}

    def _commit(self) -> None:
        """Replace the dates that came out different, in one commit; then note lineage of all that were computed."""
        self.computed += len(self._waiting)
        news = {day: rows for day, rows in self._waiting.items() if self.anyway or not self._stands(day, rows)}
        if news:
            replace = partial(
                replace_partitions,
                self.lake,
                self.contract,
                pa.concat_tables(news.values()),
                list(news),
                metadata=commit_metadata(self.rollup, self._state),
                expected_version=None if self.version == ABSENT else self.version,
            )
            unit = Unit("commit", self.rollup.name, tuple(news), reads=self.rollup.tables, writes=True)
            self.version = carry_out(unit, replace)
            self.replaced += news
            self.rows += sum(rows.num_rows for rows in news.values())
        if self._state:
            self.lineage.note(self.rollup, self.version, self.inputs, self._state)
        self._waiting, self._state = {}, {}

    def _stands(self, day: date, rows: pa.Table) -> bool:
        """Return whether the table holds just these rows on a date: then what reads them need not be computed again."""
        if day not in self.output.digests:
            return bool(rows.num_rows == 0)
        if sum(self.output.files([day])["num_records"].to_pylist()) != rows.num_rows:
            return False
        try:
            held = self.output.rows(self.lake, days=[day])  # a date is replaced once, so it is still as it was at first
        except DamagedFileError:  # what was computed anew takes its place
            return False
        return bool(_sorted(held, self.contract.grain).equals(_sorted(rows, self.contract.grain)))


def _sorted(rows: pa.Table, grain: Sequence[str]) -> pa.Table:
    return rows.sort_by([(name, "ascending") for name in grain]).combine_chunks()
