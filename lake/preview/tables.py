"""What sets a table of a clone apart, once it is migrated: rows, files, bytes, columns."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from ranklake.lake.migrations.registry import ends_of
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.tables import delta_table

if TYPE_CHECKING:
    from ranklake.lake.migrations.migration import Migration
    from ranklake.lake.store.store import Lake


@dataclass(frozen=True, slots=True)
class TableDifference:
    """What became of a table.

    Attributes
    ----------
    migrations
        Labels of those that were tried on it.
    version_before, version_after
        Of its contract; where only columns of an overlay are migrated, of these.
    rows_before, rows_after, files_before, files_after, bytes_before, bytes_after
        As its log says.
    columns
        What became of columns, a clause each.
    """

    table: str
    migrations: tuple[str, ...]
    version_before: int
    version_after: int
    rows_before: int
    rows_after: int
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    columns: tuple[str, ...]


def table_difference(lake: "Lake", copy: "Lake", name: str, wanted: "Sequence[Migration]") -> TableDifference:
    """Return what migrations made of a table of a lake, in a copy of it."""
    mine = [one for one in wanted if one.table == name]
    lines = [some for is_added in (False, True) if (some := [one for one in mine if one.is_of_added == is_added])]
    first, last = lines[0][0].from_version, lines[0][-1].to_version
    sizes = [_size(delta_table(one, name)) for one in (lake, copy)]
    (files_before, rows_before, bytes_before), (files_after, rows_after, bytes_after) = sizes
    return TableDifference(
        name,
        tuple(one.label for one in mine),
        first,
        last,
        rows_before,
        rows_after,
        files_before,
        files_after,
        bytes_before,
        bytes_after,
        tuple(said for some in lines for said in _columns(lake, some[0], some[-1])),
    )


def _size(handle: Any) -> tuple[int, int, int]:  # noqa: ANN401 - a table's handle, or None
    live = None if handle is None else files(handle)
    if live is None:
        return 0, 0, 0
    rows, size = (int(pc.sum(live[name]).as_py() or 0) for name in ("num_records", "size_bytes"))
    return live.num_rows, rows, size


def _columns(lake: "Lake", first: "Migration", last: "Migration") -> Iterable[str]:
    ends = ends_of(first, lake.overlay)[0], ends_of(last, lake.overlay)[1]
    old, new = ({one.id: one for one in end.columns} for end in ends)
    for id_ in sorted(old.keys() | new.keys()):
        before, after = old.get(id_), new.get(id_)
        if after is None and before is not None:
            yield f"{before.name} goes"
        elif before is None and after is not None:
            yield f"{after.name} comes, {after.type}" + (f" in {after.unit}" if after.unit else "")
        elif before is not None and after is not None:
            pairs = [("", before.name, after.name), ("type ", before.type, after.type)]
            pairs.append(("unit ", str(before.unit), str(after.unit)))
            said = [f"{what}{a} becomes {b}" for what, a, b in pairs if a != b]
            if said:
                yield (f"{before.name}: " if before.name == after.name else "") + ", ".join(said)
