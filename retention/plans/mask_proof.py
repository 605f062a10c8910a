"""The proof of masks: checks that stored values have the form that their masks produce.

    at capture   rows that the masking policy selects, from its start date on
    at rest      rows whose age is past mask_after_days of a rule
    in shares    copies of what roles see

The proof reads a sample: the newest files of each table and some older ones, with all distinct values of the masked
columns. It does not rely on the register of plans, and reports no value.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.capture_masks import NO_MASKS, CaptureMasks
from ranklake.lake.store.tables import Tables
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read_some
from ranklake.lake.tables.tables import delta_table, latest
from ranklake.masking.columns import unmasked_values
from ranklake.masking.masks import Mask, Pseudonyms, default_mask
from ranklake.retention.holds.holds import holds_of
from ranklake.retention.plans.due import ages, by_day
from ranklake.retention.plans.masks import Masks, Partition, SealedMasks
from ranklake.retention.policies.order import cutoff
from ranklake.retention.policies.parts import Parts, run_facts
from ranklake.retention.shares.copies import copy_contract
from ranklake.retention.shares.place import open_place
from ranklake.retention.shares.register import shares

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
    from ranklake.retention.policies.policies import Policies

FILES: Final = 8
"""Number of files or dates in the sample of a table: half of them the newest, the others spread over the rest."""
GRACE_DAYS: Final = 7
"""Days after its period in which a value counts as ``due``, for a plan to be approved and applied."""
CAPTURE: Final = "at capture"
REST: Final = "at rest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Result for one masked column at one place.

    Attributes
    ----------
    place
        ``at capture``, ``at rest`` or ``share`` with its role.
    table, column, mask
        The column and its mask.
    values
        Number of distinct values in the sample, without NULL.
    unmasked
        Number of these values that the mask cannot have produced.
    first, last
        First and last date with unmasked values; None if there are none.
    status
        ``masked``; ``unmasked``; ``due`` if a plan may still mask the values; ``unseen`` if the sample has no value.
    """

    place: str
    table: str
    column: str
    mask: str
    values: int
    unmasked: int
    first: date | None
    last: date | None
    status: str

    @property
    def hint(self) -> str:
        """How to fix the problem; empty if there is none."""
        if self.status in {"masked", "unseen"}:
            return ""
        if self.place == CAPTURE:
            return "whoever recorded or imported it went without the policy: name it there, mask these rows by a rule"
        if self.place == REST:
            return "'ranklake retain plan' masks it, once approved"
        return "'ranklake share ROLE --drop', and share it again"

    @property
    def problem(self) -> str:
        """The problem in one line."""
        days = f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"
        count = f"{self.unmasked:,} of {self.values:,} distinct values"
        verb = "wait to be masked" if self.status == "due" else "are not"
        return f"{self.table}.{self.column} is masked {self.place} ({self.mask}), and {count} of {days} {verb}"

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self) | {"hint": self.hint}


@dataclass
class _Count:
    values: int = 0
    unmasked: int = 0
    first: date | None = None
    last: date | None = None

    def add(self, distinct: pa.Array, masks: Sequence[Mask], pseudonyms: Pseudonyms | None, day: date) -> None:
        """Count distinct values of a date. A value is masked if any of the masks can have produced it."""
        rest = distinct
        for mask in masks:
            rest = unmasked_values(rest, mask, pseudonyms)
        self.values, self.unmasked = self.values + len(distinct), self.unmasked + len(rest)
        if len(rest):
            self.first = day if self.first is None else min(self.first, day)
            self.last = day if self.last is None else max(self.last, day)

    def proof(self, place: str, table: str, column: str, mask: Mask, *, due_from: date | None = None) -> Proof:
        status = "unmasked" if self.unmasked else "masked" if self.values else "unseen"
        if self.first is not None and due_from is not None and self.first >= due_from:
            status = "due"
        return Proof(
            place=place,
            table=table,
            column=column,
            mask=mask.spec,
            values=self.values,
            unmasked=self.unmasked,
            first=self.first,
            last=self.last,
            status=status,
        )


def prove(
    lake: "Lake",
    contracts: "Mapping[str, Contract]",
    policies: "Policies",
    roles: "Mapping[str, Role]",
    *,
    capture: CaptureMasks = NO_MASKS,
    pseudonyms: Pseudonyms | None = None,
    as_of: date,
) -> Iterator[Proof]:
    """Yield the result for every masked column, by place, table and column. Writes nothing.

    Parameters
    ----------
    pseudonyms
        Keyring to verify pseudonyms; without it every value in the form of a pseudonym is accepted.
    """
    for table, masks in capture.columns.items():
        if table in contracts:
            yield from _capture_proofs(lake, contracts[table], masks, capture.since, pseudonyms)
    yield from _rest_proofs(lake, contracts, policies, as_of, pseudonyms)
    for share in shares(lake.store):
        if share.role in roles:
            yield from _share_proofs(open_place(lake.store, share.uri), roles[share.role], contracts, pseudonyms)


def _capture_proofs(
    lake: "Lake", contract: "Contract", masks: Mapping[str, Mask], since: date | None, pseudonyms: Pseudonyms | None
) -> Iterator[Proof]:
    handle = latest(lake.tables, contract.table)
    if handle is None:
        return
    live = files(handle)
    if since is not None:
        live = live.filter(pc.greater_equal(live["date"], pa.scalar(since, pa.date32())))
    sealed_masks = SealedMasks(lake, contract)  # values that were masked at capture may be sealed now
    yield from _column_proofs(lake.tables, contract, live, masks, CAPTURE, pseudonyms, sealed_masks)


def _share_proofs(
    place: "Store", role: "Role", contracts: "Mapping[str, Contract]", pseudonyms: Pseudonyms | None
) -> Iterator[Proof]:
    for table in sorted(role.tables & contracts.keys()):
        masks = {
            sight.column.name: sight.mask
            for sight in role.sights(contracts[table])
            if sight.mask and not sight.is_hidden
        }
        handle = delta_table(place, table) if masks else None
        if handle is not None:
            copy = copy_contract(role, contracts[table])
            where = f"in the share of {role.name}"
            yield from _column_proofs(Tables(place), copy, files(handle), masks, where, pseudonyms)


def _column_proofs(
    tables: "Tables",
    contract: "Contract",
    live: pa.Table,
    masks: Mapping[str, Mask],
    place: str,
    pseudonyms: Pseudonyms | None,
    sealed_masks: SealedMasks | None = None,
) -> Iterator[Proof]:
    """Yield the results for columns of a table that are masked in all rows."""
    live = live.sort_by([("date", "ascending"), ("path", "ascending")])
    sample = live.take(pa.array(spread(live.num_rows), pa.int64()))
    days = dict(zip(sample["path"].to_pylist(), sample["date"].to_pylist(), strict=True))
    counts = {name: _Count() for name in masks if name in contract}
    for path, rows in read_some(tables, contract, sample, list(counts)):
        for name, count in counts.items():
            column = contract.column(name)
            values, accepted = _distinct(rows[name]), [masks[name]]
            if sealed_masks is not None:  # a rule may have masked the captured value again
                accepted.append(default_mask(column.mask, column.class_, column.type))
                values = sealed_masks.readable(values)
            count.add(values, accepted, pseudonyms, days[path])
    for name, count in sorted(counts.items()):
        yield count.proof(place, contract.table, name, masks[name])


def _rest_proofs(
    lake: "Lake",
    contracts: "Mapping[str, Contract]",
    policies: "Policies",
    as_of: date,
    pseudonyms: Pseudonyms | None,
) -> Iterator[Proof]:
    holds, runs = holds_of(lake, as_of), None
    for contract in contracts.values():
        masks = Masks(lake, contract, policies.rules, ())
        handle = latest(lake.tables, contract.table) if masks.columns else None
        if handle is None:
            continue
        runs = run_facts(lake.tables, [*policies.rules, *(hold.rule for hold in holds)]) if runs is None else runs
        parts_of = by_day(Parts(lake, contract, masks.rules, (), runs), holds)
        live = files(handle)
        least = cutoff(min(masks.days), as_of)
        old = [] if least is None else sorted((day, age) for day, age in ages(live).items() if age < least)
        counts = {name: _Count() for name in masks.columns}
        for index in spread(len(old)):
            day, age = old[index]
            parts = parts_of(day)
            first_file = live.filter(pc.equal(live["date"], pa.scalar(day, pa.date32()))).slice(0, 1)
            partition = Partition(masks, parts, age, as_of, pseudonyms)
            columns = list(dict.fromkeys([*parts.columns, *masks.columns]))
            for _, rows in read_some(lake.tables, contract, first_file, columns):
                for name, is_due in partition.due_rows(rows).items():
                    mask, values = masks.columns[name], _distinct(rows[name].filter(is_due))
                    if masks.sealed_masks.needs_keys({name: mask}):
                        values = masks.sealed_masks.readable(values)
                    counts[name].add(values, [mask], pseudonyms, day)
        due_from = None if least is None else least - timedelta(days=GRACE_DAYS)
        for name, count in sorted(counts.items()):
            yield count.proof(REST, contract.table, name, masks.columns[name], due_from=due_from)


def _distinct(values: pa.ChunkedArray) -> pa.Array:
    """Return the distinct values without NULL; for lists, which cannot be compared, all values."""
    array = values.combine_chunks()
    return (array if pa.types.is_list(values.type) else pc.unique(array)).drop_null()


def spread(count: int, most: int = FILES) -> Sequence[int]:
    """Return at most `most` sorted indices below `count`: half of them the last ones, the others spread evenly."""
    if count <= most:
        return range(count)
    newest = most // 2
    rest = count - newest
    return [*(step * rest // (most - newest) for step in range(most - newest)), *range(rest, count)]
