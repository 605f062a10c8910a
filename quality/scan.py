"""One scan of one partition: all its expectations, in batches of bounded size, their counts summed up.

Great Expectations judges what the screen does not clear: at seconds for its import, and a microsecond and more for
each value, it is not asked what a column's extremes already tell.
"""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.checks.registry import failures, judged_rows, kind_of
from ranklake.lake.contracts.model import ALARMS
from ranklake.lake.tables.live_files import DamagedFileError
from ranklake.lake.tables.read import read_batches
from ranklake.quality.engine import frame
from ranklake.quality.forms import Screen, clear
from ranklake.quality.keys import Hashes, count_repeats, repeated_keys
from ranklake.quality.suites.conditions import filter_rows
from ranklake.quality.tally import Tally
from ranklake.quality.watching import watch, watched_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ranklake.lake.contracts.model import Check, Contract
    from ranklake.lake.store.store import Store
    from ranklake.quality.engine import Verdict
    from ranklake.quality.suite import Expectation, Suite
    from ranklake.quality.suites.conditions import Condition
    from ranklake.quality.tally import Partition

    Judged = tuple[Expectation, Tally]
    Judge = Callable[..., list[Verdict]]

BATCH_ROWS: Final = 500_000  # of 40 columns these take about 400 MB on their way through pandas
_SHOWN: Final = 3
_RUN: Final = "run"
_KEYED: Final = ("unique", "duplicates")


def scan(
    store: "Store",
    contract: "Contract",
    suite: "Suite",
    part: "Partition",
    judge: "Judge",
    batch_rows: int = BATCH_ROWS,
    judged_rows: int = 0,
) -> list[Tally]:
    """Return one tally per expectation of the suite, in its order.

    Parameters
    ----------
    contract
        With those columns only that the table has; expectations on others come back as absent.
    batch_rows
        Rows that are put to the judge at a time.
    judged_rows
        Rows at the partition's beginning that are put to the judge whatever they hold, by which tests compare it with
        the screen; of the rest it is asked what is in doubt.

    A file that cannot be read makes the expectations errored, each with the reason.
    """
    tallies = [
        Tally(error=expectation.refused, absent=any(name not in contract for name in expectation.columns))
        for expectation in suite.expectations
    ]
    all_pairs = zip(suite.expectations, tallies, strict=True)
    there = [(expectation, tally) for expectation, tally in all_pairs if expectation.is_scanned and not tally.absent]
    judged = _group_checks(there)
    unread = [pair for pair in there if pair[0].per_row or pair[0].watch is not None]
    watched = [
        (expectation, tally, watched_columns(contract, expectation))
        for expectation, tally in there
        if expectation.watch is not None
    ]
    read = {name for expectation, _ in there for name in expectation.columns}.union(*(names for _, _, names in watched))
    columns = [name for name in contract.names if name in read or (name == _RUN and read)]
    with ExitStack() as held:
        keys = {
            expectation.check.id: held.enter_context(Hashes(_key(contract, expectation.check), part.rows))
            for expectation, _ in there
            if expectation.check.kind in _KEYED
        }
        whole = not columns
        try:
            batches = read_batches(store, contract, part.files, columns, batch_rows=batch_rows, dictionaries=True)
            for rows in batches if columns else ():
                for hashes in keys.values():
                    hashes.add(rows)
                watch(rows, watched)
                first, rest = rows.slice(0, judged_rows), rows.slice(judged_rows)
                judged_rows -= first.num_rows
                for where, classified in judged:
                    group = judged[where, classified]
                    _add(contract, suite, filter_rows(first, where), group, judge, classified=classified)
                    mine = filter_rows(rest, where)
                    _add(contract, suite, mine, _screen(suite, mine, group), judge, classified=classified)
            whole = True
        except DamagedFileError as error:
            for _, tally in unread:
                tally.error = f"a data file cannot be read: {error}"
        except (OSError, pa.ArrowException) as error:  # no text of theirs: it may quote a value
            for _, tally in unread:
                tally.error = f"a data file cannot be read ({type(error).__name__})"
        for expectation, tally in there:
            if not expectation.per_row and expectation.watch is None:
                _judge_whole(
                    store, contract, part, expectation, tally, keys.get(expectation.check.id) if whole else None
                )
    return tallies


def _group_checks(there: "Sequence[Judged]") -> "dict[tuple[Condition | None, bool], list[Judged]]":
    """Return what is judged row by row, by the rows that it is about and by whether it reads classified columns."""
    groups: dict[tuple[Condition | None, bool], list[Judged]] = {}
    for expectation, tally in there:
        if expectation.per_row:
            groups.setdefault((expectation.where, expectation.classified), []).append((expectation, tally))
    return groups


def _screen(suite: "Suite", rows: pa.Table, group: "Sequence[Judged]") -> "list[Judged]":
    """Count the rows of what surely none of them fails; return the other expectations."""
    if not rows.num_rows:
        return []
    screen = Screen(rows, suite.ranges)
    doubtful = []
    for expectation, tally in group:
        count = 0 if _blank(expectation.check, rows) else clear(screen, expectation.check)
        if count is None:
            doubtful.append((expectation, tally))
        else:
            tally.checked += count
    return doubtful


def _add(
    contract: "Contract",
    suite: "Suite",
    rows: pa.Table,
    group: "Sequence[Judged]",
    judge: "Judge",
    *,
    classified: bool,
) -> None:
    """Put rows to the judge, and add what it says."""
    group = [pair for pair in group if not _blank(pair[0].check, rows)]
    if not group or not rows.num_rows:
        return
    expectations = [expectation for expectation, _ in group]
    named = {name for expectation in expectations for name in expectation.check.columns}
    stored = arrow_schema(contract)
    runs = rows[_RUN] if _RUN in rows.column_names else None
    rows = pa.table({name: rows[name].cast(stored.field(name).type) for name in rows.column_names if name in named})
    verdicts = judge(contract, frame(rows, expectations, suite.ranges), expectations, classified=classified)
    for (expectation, tally), verdict in zip(group, verdicts, strict=True):
        if verdict.success is False and runs is not None and expectation.check.severity in ALARMS:
            failed = runs.filter(failures(expectation.check, rows, suite.ranges)).unique()
            tally.runs.update(name for name in failed.to_pylist() if name is not None)
        if verdict.success is None:
            tally.error = tally.error or verdict.error
        elif verdict.checked is None or verdict.failed is None:  # told yes or no only: Arrow counts
            tally.checked += judged_rows(expectation.check, rows, suite.ranges)
            if not verdict.success:
                tally.failed += int(pc.sum(failures(expectation.check, rows, suite.ranges)).as_py() or 0)
        else:
            tally.checked += verdict.checked
            tally.failed += verdict.failed
            whole = pa.types.is_integer(
                rows[expectation.check.columns[0]].type
            )  # pandas makes floats of them where one is NULL
            shown = verdict.shown[: _SHOWN - len(tally.seen)]
            tally.seen += [f"{value:.0f}" if whole and isinstance(value, float) else str(value) for value in shown]


def _blank(check: "Check", rows: pa.Table) -> bool:
    """Return whether there is no value to judge, as in columns that a job never fills: that costs nobody a question."""
    return kind_of(check).null_passes and any(rows[name].null_count == rows.num_rows for name in check.columns)


def _key(contract: "Contract", check: "Check") -> list[str]:
    """Return what tells rows of one partition apart: its own columns are the same in all of them."""
    return [name for name in check.columns if name not in contract.partition]


def _judge_whole(
    store: "Store",
    contract: "Contract",
    part: "Partition",
    expectation: "Expectation",
    tally: Tally,
    hashes: Hashes | None,
) -> None:
    check = expectation.check
    if check.kind == "row_count":
        tally.checked = part.rows
        low, high = check.min, check.max
        outside = (low is not None and part.rows < float(low)) or (high is not None and part.rows > float(high))
        tally.failed = part.rows if outside else 0
        tally.passed = not outside  # of no rows, too
        tally.seen = [f"{part.rows} rows"]
        return
    if hashes is not None and hashes.distinct():
        tally.checked = hashes.rows
        return
    try:
        tally.checked, tally.failed = count_repeats(store, contract, part.files, check.columns)
    except Exception as error:  # noqa: BLE001 - the query engine has no error class of its own; no text: it may quote a key
        tally.error = f"could not be computed ({type(error).__name__})"
        return
    if tally.failed and check.kind == "unique" and _RUN in check.columns and check.severity in ALARMS:
        tally.runs.update(repeated_keys(store, contract, part.files, _key(contract, check))[_RUN].to_pylist())
    if check.kind == "duplicates" and tally.checked:
        tally.seen = [f"{tally.failed:,} of {tally.checked:,} rows"]
        if tally.failed <= float(check.max or 0) * tally.checked:
            tally.failed = 0
