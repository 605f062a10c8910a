"""Taking failing rows out: one plan moves them to ``rejects`` and records the results, both or neither.

A crash before the plan is written leaves files that no commit names; a later one leaves a plan that the next driver
finishes.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts import edge
from ranklake.lake.contracts.load import contract as contract_of
from ranklake.lake.ingest.rejects import reject_rows
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.kinds import QUARANTINE
from ranklake.lake.plans.plan import row_files
from ranklake.lake.tables.live_files import files_digest
from ranklake.lake.tables.parquet import append_files
from ranklake.quality.results import RESULTS

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.tables.live_files import DataFile
    from ranklake.quality.tally import Partition

REJECTS: Final = "rejects"
_ROWS: Final = 50_000  # rows that are JSON text in memory at a time


@dataclass(slots=True)
class QuarantineResult:
    """What was taken out of one partition.

    Attributes
    ----------
    reasons
        Rows by reason, as `ranklake.lake.contracts.edge.judge` gives it.
    files
        Paths of the partition's files that were scanned, after rows were taken out.
    """

    reasons: Counter[str] = field(default_factory=Counter)
    files: set[str] = field(default_factory=set)


def compose(
    lake: "Lake",
    number: int,
    contract: "Contract",
    parts: "Sequence[Partition]",
    report: Callable[[dict[date, QuarantineResult]], list[dict[str, Any]]],
) -> "Plan | None":
    """Write the files of a plan that takes failing rows out of some partitions; None if no row fails any more.

    Parameters
    ----------
    contract
        Its quarantining checks say which rows go; its columns are those that the table has.
    parts
        Partitions as they were scanned. Files that came since are left for the next check, files that are gone are
        passed over. Where scanned files were merely merged meanwhile, the merged ones take their place.
    report
        Given what was taken out of each partition, returns the rows of ``quality_results`` that the plan commits too.
    """
    when = datetime.now(UTC)
    gone: list[pa.Table] = []
    new: list[DataFile] = []
    taken = {part.day: QuarantineResult(files=set(part.files["path"].to_pylist())) for part in parts}
    candidates = _candidates(lake, contract, taken)
    for dropped, replaced, rows in action_plan.take_rows_out(
        lake.tables, contract, number, candidates, lambda rows: pc.is_valid(edge.judge(contract, rows))
    ):
        target = taken[dropped["date"][0].as_py()]
        target.files -= set(dropped["path"].to_pylist())
        target.files |= {file.path for file in replaced}
        gone.append(dropped)
        new += replaced
        for start in range(0, rows.num_rows, _ROWS):
            chunk = rows.slice(start, _ROWS)
            reasons = edge.judge(contract, chunk)
            target.reasons.update(reasons.to_pylist())
            rejected = reject_rows(chunk, reasons, [None] * chunk.num_rows, "check", contract, number, when)
            new += append_files(lake.store, contract_of(REJECTS), rejected, number)
    if not gone:
        return None
    new += row_files(lake.store, RESULTS, report(taken), number)
    return action_plan.compose(number, QUARANTINE.name, add=new, remove={contract.table: pa.concat_tables(gone)})


def _candidates(lake: "Lake", contract: "Contract", taken: dict[date, QuarantineResult]) -> pa.Table:
    """Return the live files that hold scanned rows alone, and put merged files into the place of scanned ones."""
    live = action_plan.live_files(lake, contract.table, list(taken))
    parts = [live.slice(0, 0)]
    for day, target in taken.items():
        rows = live.filter(pc.equal(live["date"], pa.scalar(day, pa.date32())))
        paths = rows["path"].to_pylist()
        if files_digest(paths) == files_digest(target.files):
            target.files = set(paths)
        parts.append(rows.filter(pc.is_in(rows["path"], value_set=pa.array(target.files, pa.string()))))
    return pa.concat_tables(parts)
