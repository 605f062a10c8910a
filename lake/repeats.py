"""Rows that came before: in the same task, or with an earlier plan.

A row's key is (incarnation, segment, slot). All rows of a segment share the first two, so a repeat needs either one
slot twice in a segment, or another segment of the same slot file: one that was sealed twice, with different cuts. Both
are rare and both show without comparing keys, so most rows cost one look at whether slots rise.
"""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from ranklake.lake.commit import files
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store import Lake

SlotFile = tuple[int, int]  # incarnation, segment
Slots = npt.NDArray[np.integer[Any]]
Mask = npt.NDArray[np.bool_]

KEY: Final = ("incarnation", "segment", "slot")


def first_of_key(
    slots: Slots, keyed: Mask | None, starts: Slots, owners: Sequence[SlotFile], seen: Mapping[SlotFile, Slots]
) -> Mask | None:
    """Return a mask of the rows whose key did not come before; None where that is all of them.

    Parameters
    ----------
    slots
        Of all rows, segment after segment; any number where it is NULL.
    keyed
        False where a part of the key is NULL: such a row repeats none. None where no key has a NULL.
    starts
        Where each segment begins; none is empty.
    owners
        Slot file of each segment.
    seen
        Slots of slot files that came before these rows.
    """
    rising = np.ones(len(slots), bool)
    np.greater(slots[1:], slots[:-1], out=rising[1:])
    rising[starts] = True
    ends = np.append(starts[1:], len(slots))
    parts: dict[SlotFile, list[int]] = {}
    for index, owner in enumerate(owners):
        parts.setdefault(owner, []).append(index)
    doubtful = [owner for owner, own in parts.items() if len(own) > 1 or owner in seen]
    if keyed is None and not doubtful and bool(rising.all()):
        return None
    suspects = set(doubtful)
    if keyed is not None or not rising.all():
        falls = np.logical_and.reduceat(rising, starts)
        suspects |= {owner for owner, rises in zip(owners, falls, strict=True) if not rises}
    mask = np.ones(len(slots), bool)
    for owner in suspects:
        places = np.concatenate([np.arange(starts[index], ends[index]) for index in parts[owner]])
        if keyed is not None:
            places = places[keyed[places]]
        order = np.argsort(slots[places], kind="stable")
        ordered = slots[places][order]
        again = np.zeros(len(places), bool)
        again[order[1:]] = ordered[1:] == ordered[:-1]
        if owner in seen:
            again |= np.isin(slots[places], seen[owner])
        mask[places] = ~again
    return None if bool(mask.all()) else mask


def stored_before(
    lake: "Lake", target: "Contract", of: Collection[tuple[int, int, int]], version: int, rejects_version: int
) -> dict[SlotFile, Slots]:
    """Return the slots of some slot files that earlier plans stored or rejected.

    Parameters
    ----------
    of
        (rank, incarnation, segment) of each.
    version, rejects_version
        Delta versions of the table and of ``rejects`` to look into: those when the plan was made, so that carrying out
        a half-committed plan again gives the same answer.

    What is read is bounded: of each file only row groups that may hold rows of these ranks, of these only some columns,
    and of what is found only the slots are held.
    """
    if not of:
        return {}
    found: dict[SlotFile, list[Slots]] = {}
    wanted = {(incarnation, segment) for _, incarnation, segment in of}
    near = {
        "incarnation": sorted({incarnation for _, incarnation, _ in of}),
        "segment": sorted({segment for _, _, segment in of}),
    }
    own = ds.field("table") == target.table
    # A rejected row may lack its rank, which is then what was wrong with it.
    stored = _rows(lake, target.table, version, {**near, "rank": sorted({rank for rank, _, _ in of})}, None)
    for rows in itertools.chain(stored, _rows(lake, "rejects", rejects_version, near, own)):
        keys = [rows[column].to_numpy() for column in KEY]
        for slot_file in set(zip(keys[0].tolist(), keys[1].tolist(), strict=True)) & wanted:
            mine = (keys[0] == slot_file[0]) & (keys[1] == slot_file[1])
            found.setdefault(slot_file, []).append(keys[2][mine])
    return {slot_file: np.concatenate(some) for slot_file, some in found.items()}


def _rows(
    lake: "Lake", table: str, version: int, near: Mapping[str, list[int]], also: ds.Expression | None
) -> Iterator[pa.Table]:
    """Yield the keys of rows whose columns have some of these values, file by file; none with a NULL in its key."""
    if version < 0:
        return
    handle = DeltaTable(lake.table_uri(table), version=version, storage_options=lake.storage)
    condition = reduce(and_, [ds.field(name).isin(values) for name, values in near.items()])
    condition &= ds.field("slot").is_valid()
    condition = condition if also is None else condition & also
    schema = arrow_schema(contract(table))
    filesystem, form = lake.arrow_filesystem(), ds.ParquetFileFormat()
    for path in may_hold(files(handle), near)["path"].to_pylist():
        place = lake.path("tables", table, path)
        fragment = form.make_fragment(place, filesystem=filesystem)
        yield fragment.to_table(schema=schema, columns=list(KEY), filter=condition, use_threads=False)


def may_hold(live: pa.Table, near: Mapping[str, list[int]]) -> pa.Table:
    """Return the files (rows of `ranklake.lake.commit.files`) that may hold such rows, by the statistics in the log."""
    for name, values in near.items():
        low, high = f"min.{name}", f"max.{name}"
        if low in live.column_names and high in live.column_names:
            meets = pc.and_(pc.less_equal(live[low], values[-1]), pc.greater_equal(live[high], values[0]))
            live = live.filter(pc.fill_null(meets, fill_value=True))
    return live
