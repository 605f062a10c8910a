"""The proof of masks: values that are stored, held against the shape that their masks leave.

    at capture   rows that the masking policy is about, from its day on
    at rest      rows that a rule's mask_after_days is over for
    in shares    copies of what roles see

A sample: of each table the newest files and some in between, of each of them all distinct values of the masked columns.
Neither the register of plans nor the policy is believed; no value is reported.
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
from ranklake.retention.plans.masks import Masks, OpenedMasks, Partition
from ranklake.retention.policies.order import cutoff
from ranklake.retention.policies.parts import Parts, run_facts
from ranklake.retention.shares.definition import copy_contract
from ranklake.retention.shares.place import open_place
from ranklake.retention.shares.register import shares

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
    from ranklake.retention.policies.policies import Policies

FILES: Final = 8
"""Files of a table, or dates, that are looked at: half of them the newest, the others spread over the rest."""
GRACE_DAYS: Final = 7
"""How long after its period a value may wait for a plan to be approved and applied."""
CAPTURE: Final = "at capture"
REST: Final = "at rest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was found of one masked column at one place.

    Attributes
    ----------
    place
        ``at capture``, ``at rest`` or ``share`` with its role.
    table, column, mask
        What is masked, and how.
    values
        Distinct values that were looked at, NULL aside.
    unmasked
        How many of them the mask cannot have left.
    first, last
        Dates between which those are; None where there are none.
    status
        ``masked``, ``unmasked``; ``due`` where a plan may still come for it; ``unseen`` where there was no value.
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
        """What to do about it; empty where nothing is to be done."""
        if self.status in {"masked", "unseen"}:
            return ""
        if self.place == CAPTURE:
            return "whoever recorded or imported it went without the policy: name it there, mask these rows by a rule"
        if self.place == REST:
            return "'ranklake retain plan' masks it, once approved"
        return "'ranklake share ROLE --drop', and share it again"

    @property
    def problem(self) -> str:
        """What is wrong, in one line."""
        days = f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"
        of = f"{self.unmasked:,} of {self.values:,} distinct values"
        verb = "wait to be masked" if self.status == "due" else "are not"
        return f"{self.table}.{self.column} is masked {self.place} ({self.mask}), and {of} of {days} {verb}"

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
        """Count distinct values, of which each is as one of some masks leaves it."""
        left = distinct
        for mask in masks:
            left = unmasked_values(left, mask, pseudonyms)
        wrong = len(left)
        self.values, self.unmasked = self.values + len(distinct), self.unmasked + wrong
        if wrong:
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
    """Yield what a sample shows of every masked column, by place, table and column. Writes nothing.

    Parameters
    ----------
    pseudonyms
        To tell genuine pseudonyms; without them whatever has their form is one.
    """
    for table, masks in capture.columns.items():
        if table in contracts:
            yield from _capture_proofs(lake, contracts[table], masks, capture.since, pseudonyms)
    yield from _at_rest(lake, contracts, policies, as_of, pseudonyms)
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
    opened = OpenedMasks(lake, contract)  # what was masked at capture is sealed since
    yield from _looked_at(lake.tables, contract, live, masks, CAPTURE, pseudonyms, opened)


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
            yield from _looked_at(Tables(place), copy, files(handle), masks, f"in the share of {role.name}", pseudonyms)


def _looked_at(
    tables: "Tables",
    contract: "Contract",
    live: pa.Table,
    masks: Mapping[str, Mask],
    place: str,
    pseudonyms: Pseudonyms | None,
    opened: OpenedMasks | None = None,
) -> Iterator[Proof]:
    """Yield what the files of a table show of columns that all of their rows have masked."""
    live = live.sort_by([("date", "ascending"), ("path", "ascending")])
    sample = live.take(pa.array(spread(live.num_rows), pa.int64()))
    days = dict(zip(sample["path"].to_pylist(), sample["date"].to_pylist(), strict=True))
    counts = {name: _Count() for name in masks if name in contract}
    for path, rows in read_some(tables, contract, sample, list(counts)):
        for name, count in counts.items():
            column = contract.column(name)
            or_at_rest = default_mask(column.mask, column.class_, column.type)  # a rule may have come after
            shapes = [masks[name]] if opened is None else [masks[name], or_at_rest]
            values = _distinct(rows[name])
            count.add(values if opened is None else opened.readable(values), shapes, pseudonyms, days[path])
    for name, count in sorted(counts.items()):
        yield count.proof(place, contract.table, name, masks[name])


def _at_rest(
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
        for place in spread(len(old)):
            day, age = old[place]
            parts = parts_of(day)
            of_day = live.filter(pc.equal(live["date"], pa.scalar(day, pa.date32()))).slice(0, 1)
            partition = Partition(masks, parts, age, as_of, pseudonyms)
            for _, rows in read_some(
                lake.tables, contract, of_day, list(dict.fromkeys([*parts.columns, *masks.columns]))
            ):
                for name, which in partition.which(rows).items():
                    mask, values = masks.columns[name], _distinct(rows[name].filter(which))
                    values = masks.opened.readable(values) if masks.opened.needs_keys({name: mask}) else values
                    counts[name].add(values, [mask], pseudonyms, day)
        late = None if least is None else least - timedelta(days=GRACE_DAYS)
        for name, count in sorted(counts.items()):
            yield count.proof(REST, contract.table, name, masks.columns[name], due_from=late)


def _distinct(values: pa.ChunkedArray) -> pa.Array:
    """Return distinct values but NULL; all of a type that cannot be compared."""
    whole = values.combine_chunks()
    return (whole if pa.types.is_list(values.type) else pc.unique(whole)).drop_null()


def spread(many: int, most: int = FILES) -> Sequence[int]:
    """Return places among so many: the last few, and some in between, in order."""
    if many <= most:
        return range(many)
    newest = most // 2
    rest = many - newest
    return [*(step * rest // (most - newest) for step in range(most - newest)), *range(rest, many)]
