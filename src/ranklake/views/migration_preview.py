"""What a migration would change, on a terminal."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ranklake.views.words import counted

if TYPE_CHECKING:
    from ranklake.lake.preview.differences import RollupDifference
    from ranklake.lake.preview.run import Preview
    from ranklake.lake.preview.tables import TableDifference


def preview_lines(found: "Preview") -> Iterator[str]:
    """Yield tables, rollups and checks, and what is different in each."""
    if not found.tables:
        yield "nothing is due: every table has the contract of this release"
        return
    for table in found.tables:
        yield from _table(table)
    for rollup in found.rollups:
        yield from _rollup(rollup)
    for check in found.checks:
        failed = f", {check.rows_failed:,} rows fail" if check.rows_failed else ""
        dates = counted(check.dates, "date")
        yield f"check {check.table}.{check.check}: {check.before} becomes {check.after} on {dates}{failed}"
    yield f"{counted(found.checked, 'check result')}, {len(found.checks)} other than before"
    yield "nothing was changed" if found.is_sound else "nothing was changed; what is above would fail"


def _table(one: "TableDifference") -> Iterator[str]:
    yield f"{one.table} {one.version_before} -> {one.version_after}: {', '.join(one.migrations)}"
    pairs = [("rows", one.rows_before, one.rows_after), ("files", one.files_before, one.files_after)]
    pairs.append(("bytes", one.bytes_before, one.bytes_after))
    yield "  " + ", ".join(f"{what} {before:,} -> {after:,}" for what, before, after in pairs)
    yield from (f"  {said}" for said in one.columns)


def _rollup(one: "RollupDifference") -> Iterator[str]:
    stale = " (stored before its inputs changed, so it may differ anyway)" if one.stale else ""
    if one.error:
        yield f"rollup {one.name} fails: {one.error}"
        return
    if one.is_same:
        yield f"rollup {one.name}: {counted(one.rows_after, 'row')}, the same{stale}"
        return
    rows = f"rows {one.rows_before:,} -> {one.rows_after:,}, {one.came:,} new, {one.gone:,} gone"
    yield f"rollup {one.name}: {rows}{stale}"
    for which, names in (("lacks", one.only_before), ("has", one.only_after)):
        if names:
            yield f"  {which} {', '.join(names)}"
    for name, figures in sorted(one.columns.items()):
        sums = (
            "" if figures.before is None or figures.after is None else f", sum {figures.before:g} -> {figures.after:g}"
        )
        yield f"  {name}: other in {counted(figures.changed, 'row')}{sums}"
