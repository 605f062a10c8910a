"""Applies what is due to a clone, rolls up and checks there, and tells what is different then."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ranklake.lake.migrations.composing import Work
from ranklake.lake.migrations.computing import in_order
from ranklake.lake.migrations.due import due
from ranklake.lake.plans.driver import drive
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.preview.clone import clone
from ranklake.lake.preview.differences import RollupDifference, compare
from ranklake.lake.preview.tables import TableDifference, table_difference
from ranklake.lake.preview.verdicts import CheckDifference, differing, standing
from ranklake.lake.rollups.anew import FromInputs
from ranklake.lake.rollups.due import changed_inputs, due_days
from ranklake.lake.rollups.inputs import Tables
from ranklake.lake.rollups.lineage import Lineage
from ranklake.lake.rollups.named import rollups_of
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.scratch import scratch

if TYPE_CHECKING:
    from ranklake.lake.migrations.migration import Migration
    from ranklake.lake.plans.plan import Progress
    from ranklake.lake.rollups.declaration import Rollup
    from ranklake.lake.store.store import Lake

Judge = Callable[["Lake", Sequence[str]], Iterable[Mapping[str, Any]]]
"""Checks some tables of a lake; returns rows of ``quality_results``."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What is different once everything due is applied.

    Attributes
    ----------
    tables
        Those that are migrated.
    rollups
        Those that read them, or read what reads them.
    checks
        Those that come out otherwise; `checked` is how many results there are.
    """

    tables: tuple[TableDifference, ...]
    rollups: tuple[RollupDifference, ...]
    checks: tuple[CheckDifference, ...]
    checked: int

    @property
    def is_sound(self) -> bool:
        """Whether no rollup failed and no check fails that passed."""
        return not any(one.error for one in self.rollups) and not any(one.is_worse for one in self.checks)

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"sound": self.is_sound, **asdict(self)}


def preview(
    lake: "Lake",
    judge: Judge,
    table: str | None = None,
    place: Path | None = None,
    progress: "Progress | None" = None,
) -> Preview:
    """Try what is due on a clone, in this process; return what is different then. The lake is not touched.

    Parameters
    ----------
    judge
        Runs checks.
    place
        Where the clone lies as long as it takes; it needs room for the files that are written anew.

    Raises what `ranklake.lake.migrations.applying.apply` does of migrations, but asks for no approval, and
    `ranklake.lake.preview.clone.BusyLakeError`.
    """
    wanted = [one.migration for one in in_order(lake, due(lake, table), FromInputs())]
    if not wanted:
        return Preview((), (), (), 0)
    rollups = _readers(lake, {one.table for one in wanted})
    run = rollups_of(lake, [one.name for one in rollups])  # also what these read
    needed = {one.table for one in wanted} | {name for one in run for name in (one.name, *one.tables)}
    needed |= {name for name, one in lake.contracts().items() if one.kind == "system"}
    with scratch("preview", place) as folder:
        copy = clone(lake, folder, needed)
        stale = _stale(copy, rollups)
        for one in wanted:
            _apply(copy, one, progress)
        tables = tuple(
            table_difference(lake, copy, name, wanted) for name in dict.fromkeys(one.table for one in wanted)
        )
        figures = tuple(_rolled_up(lake, copy, one, stale=one.name in stale) for one in rollups)
        judged = [one for one in needed if copy.contract(one).kind in {"fact", "derived"}]
        affected = {one.table for one in wanted} | {one.name for one in figures if not one.error}
        found = [dict(row) for row in judge(copy, sorted(affected & set(judged)))]
        checks = tuple(differing(standing(lake, affected), found))
    return Preview(tables, figures, checks, len(found))


def _apply(copy: "Lake", one: "Migration", progress: "Progress | None") -> None:
    """Carry a migration out on the clone, where nobody has to approve it."""
    work = Work(copy, InProcess(), one, progress=progress, computing=FromInputs())
    facts = {"round": 0, "single_operator": True} if one.drops else None
    drive(copy, lambda number: work.compose(number, facts), InProcess())
    work.forget()


def _readers(lake: "Lake", tables: set[str]) -> "list[Rollup]":
    """Return the rollups that read some tables, or read what reads them, each after what it reads."""
    found, reach = [], set(tables)
    for one in rollups_of(lake):
        if reach & set(one.tables) or one.name in tables:
            found.append(one)
            reach.add(one.name)
    return found


def _stale(copy: "Lake", rollups: "Sequence[Rollup]") -> set[str]:
    """Return the rollups whose inputs have changed since they were computed, by the logs, whatever code did it."""
    tables, found = Tables(copy), set[str]()
    with Lineage(copy) as lineage:
        for one in rollups:
            inputs = {name: tables.snapshot(name) for name in one.tables}
            output = tables.snapshot(one.name)
            state = {
                partition: {key: replace(told, transform_sha256=one.sha256) for key, told in keys.items()}
                for partition, keys in lineage.recorded(one, output).items()
            }
            if one.scope == "partition":
                is_due = bool(due_days(copy, one, inputs, output, state, tables.retired))
            else:
                is_due = changed_inputs(one, inputs, output, state, tables.retired) is not None
            if is_due or found & set(one.tables):
                found.add(one.name)
    return found


def _rolled_up(lake: "Lake", copy: "Lake", one: "Rollup", *, stale: bool) -> RollupDifference:
    found = RollupDifference(one.name, stale=stale)
    try:
        results = run_rollups(copy, [one.name])
    except Exception as error:  # noqa: BLE001 - whatever a rollup raises is what the preview is asked for
        found.error = " ".join(str(error).split()) or type(error).__name__
    else:
        if any(result.damaged for result in results):
            found.error = "files that it reads are damaged"
        compare(lake, copy, one.contract, found)
    return found
