"""Values that are due to be masked: columns of rows that a rule gives so many days, and that are not masked yet.

    rules with mask_after_days ──▶ which columns of which rows, under which mask ──▶ due ──▶ files rewritten

The mask of a column is its contract's. A date whose files an applied plan masked so is known from the register, and not
read again; of others the columns are read until a value is found that the mask would change. So a masked date is not
due again, also when its files were merged since or a key was rotated.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import date
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.store.keys import lost_keys
from ranklake.lake.tables.live_files import files, plan_of
from ranklake.lake.tables.read import read_some
from ranklake.lake.tables.tables import latest
from ranklake.masking.columns import mask_values, unmasked_values
from ranklake.masking.masks import Mask, Pseudonyms
from ranklake.redaction.redact import redact_uri
from ranklake.retention.plans.due import DuePartition, ages, of_day, planned_item
from ranklake.retention.policies.model import ColumnMasks, maskable
from ranklake.retention.policies.order import cutoff, masking_rule
from ranklake.retention.policies.parts import Group, Parts, Values, part_digest
from ranklake.retention.policies.policies import PolicyError
from ranklake.retention.proposals.retention_plans import Item, RetentionPlan
from ranklake.retention.subjects.keys import FORM, Lineage, sealed_by, unseal_text
from ranklake.retention.subjects.store import KeyStore, has_keys
from ranklake.segments.envelope import MissingKeyError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.retention.policies.model import Facts, Rule
    from ranklake.retention.subjects.keys import SubjectKey


_WHOLE: Final = frozenset({"nullify", "hash"})
"""Masks that need not know what a value says."""


class OpenedMasks:
    """Masks of values of a table, sealed ones among them.

    Its methods raise as `ranklake.retention.subjects.store.KeyStore` where a mask needs keys that are not available.
    """

    def __init__(self, lake: "Lake", contract: "Contract") -> None:
        self._lake, self._contract = lake, contract

    @cached_property
    def _keys(self) -> "Mapping[str, SubjectKey]":
        return KeyStore(self._lake).by_id() if has_keys(self._lake) else {}

    def needs_keys(self, masks: "Mapping[str, Mask]") -> bool:
        """Return whether some masks of columns may have to open what is sealed."""
        columns = {f"{self._contract.table}.{name}" for name, mask in masks.items() if mask.kind not in _WHOLE}
        return bool(columns) and not columns.isdisjoint(Lineage(self._lake.store).sealed_columns(self._contract))

    def mask_values(self, values: pa.Array, mask: "Mask", pseudonyms: "Pseudonyms | None") -> pa.Array:
        """Return values as a mask leaves them where they are stored; see `ranklake.masking.columns.mask_values`."""
        if mask.kind in _WHOLE or not _are_sealed(values):
            return mask_values(values, mask, pseudonyms)
        dictionary = values.cast(pa.string()).dictionary_encode()
        texts = dictionary.dictionary.to_pylist()
        clear = pa.array([self.clear(text) for text in texts], pa.string())
        shown = mask_values(clear, mask, pseudonyms).to_pylist()
        made = [self._sealed_again(*pair) for pair in zip(texts, shown, strict=True)]
        return pa.array(made, pa.string()).take(dictionary.indices)

    def unmasked_values(self, values: pa.Array, mask: "Mask", pseudonyms: "Pseudonyms | None") -> pa.Array:
        """Return those of some values that a mask cannot have left; see `ranklake.masking.columns.unmasked_values`."""
        if mask.kind in _WHOLE or not _are_sealed(values):
            return unmasked_values(values, mask, pseudonyms)
        shown = self.mask_values(values, mask, pseudonyms)
        return values.filter(pc.fill_null(pc.not_equal(shown, values.cast(pa.string())), fill_value=False))

    def readable(self, values: pa.Array) -> pa.Array:
        """Return values in clear, without those that nobody can open here; distinct ones stay so."""
        if not _are_sealed(values):
            return values
        if not self._lake.config.subjects.keys:
            return values.filter(pc.invert(_is_sealed(values)))
        return pa.array([self.clear(text) for text in values.to_pylist()], pa.string()).drop_null()

    def clear(self, text: str) -> str | None:
        """Return what a text says; None of a sealed one that no key opens."""
        return unseal_text(text, self._keys) if sealed_by(text) is not None else text

    def _sealed_again(self, text: str, shown: str | None) -> str | None:
        key_id = sealed_by(text)
        if key_id is None:
            return shown
        return text if shown is None else self._keys[key_id].seal(shown)


def _are_sealed(values: pa.Array) -> bool:
    """Return whether one of some values is sealed."""
    type_ = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    return pa.types.is_string(type_) and bool(pc.any(_is_sealed(values)).as_py())


def _is_sealed(values: pa.Array) -> pa.Array:
    return pc.fill_null(pc.match_substring_regex(values.cast(pa.string()), f"^{FORM.pattern}$"), fill_value=False)


MASKING: Final = "mask"


class Masks:
    """The rules that mask columns of one table, and the values that are due.

    Parameters
    ----------
    rules
        All rules.
    applied
        Retention plans that were applied, and not cancelled.

    Attributes
    ----------
    rules, of_table
        Those that can matter, and of them those that mask something here.
    columns
        Columns that a rule masks, with their masks; empty where there is nothing to do.
    opened
        Masks values, those among them that keys of people sealed.
    """

    def __init__(
        self, lake: "Lake", contract: "Contract", rules: "Sequence[Rule]", applied: Sequence[RetentionPlan]
    ) -> None:
        self.lake, self.contract = lake, contract
        self.rules = tuple(rule for rule in rules if MASKING in rule.action_days or rule.minimum_days is not None)
        self.of_table = tuple(one for one in self.rules if MASKING in one.action_days and one.may_match(contract))
        patterns = {pattern for one in self.of_table for pattern in one.where.get("column", ())}
        known = maskable(contract)
        self.columns = {name: known[name] for name in known if any(fnmatchcase(name, one) for one in patterns)}
        self.opened = OpenedMasks(lake, contract)
        self._plans_that_masked = _plans_that_masked(contract.table, applied)

    @property
    def days(self) -> list[int]:
        """After how many days its rules mask."""
        return [one.action_days[MASKING] for one in self.of_table]

    def due(self, as_of: date, parts_of: Callable[[date], Parts], skip: Collection[date]) -> Iterator[DuePartition]:
        """Yield the partitions with values that are due, except for some dates.

        Parameters
        ----------
        parts_of
            Tells rows of a date apart, by these rules and by legal holds.

        Raises `PolicyError` where columns are hashed and there is no key, and `ranklake.retention.subjects.store`'s
        errors where keys of people have to open what is masked and are not available.
        """
        handle = latest(self.lake.tables, self.contract.table) if self.columns else None
        if handle is None:
            return
        live = files(handle)
        pseudonyms = self._ring
        least = cutoff(min(self.days), as_of)
        for day, age in sorted(ages(live).items()):
            parts = parts_of(day)
            if day in skip or least is None or not age < least:
                continue
            if not parts.columns and not self.due_masks(parts, (), age, as_of):
                continue
            partition = of_day(live, day)
            partition_masks = Partition(self, parts, age, as_of, pseudonyms)
            if self._is_done(day, partition_masks.digest, partition) or not partition_masks.has_unmasked(partition):
                continue
            yield DuePartition(
                partition_masks.item(day, partition), partition, partition, masked=partition_masks.mask_rows
            )

    def applied_to(self, rows: pa.Table, parts: Parts, age: date, as_of: date) -> pa.Table:
        """Return rows of one age with the values masked that are due. Raises `PolicyError` as `due` does."""
        return Partition(self, parts, age, as_of, self._ring).mask_rows(rows)

    def due_masks(self, parts: Parts, values: Values, age: date, as_of: date) -> ColumnMasks:
        """Return the masks that are due for rows with these values of `Parts.columns`."""
        facts = parts.facts(values)
        return {name: mask for name, mask in self.columns.items() if self._is_due(parts, facts, name, age, as_of)}

    def _is_due(self, parts: Parts, facts: "Facts", column: str, age: date, as_of: date) -> bool:
        _, days = masking_rule(self.rules, facts, column, parts.holds)
        until = cutoff(days, as_of)
        return until is not None and age < until

    def _is_done(self, day: date, digest: str, partition: pa.Table) -> bool:
        """Return whether an applied plan wrote all files of a partition with these masks, and of all of its rows.

        Of masks of what keys of people sealed nobody knows: a key that was lost then may be back.
        """
        if self.opened.needs_keys(self.columns):
            return False
        plan = self._plans_that_masked.get((day, digest), 0)
        return all((plan_of(path) or plan + 1) <= plan for path in partition["path"].to_pylist())

    @cached_property
    def _ring(self) -> Pseudonyms | None:
        """What hashes values, read once; None where no column is hashed. Raises `PolicyError`."""
        hashed = next((name for name, mask in self.columns.items() if mask.kind == "hash"), None)
        if hashed is None:
            return None
        message = f"{self.contract.table}.{hashed} is to be masked by a keyed hash"
        source = self.lake.config.masking.key
        if not source:
            hint = "name a keyring by key under [masking] in ranklake.toml"
            raise PolicyError(f"{message}, and there is no key", where="[masking] key", hint=hint)
        try:
            pseudonyms = Pseudonyms.of(source)
        except MissingKeyError as error:
            raise PolicyError(f"{message}: {error.what}", where="[masking] key", hint=error.hint) from None
        lost = lost_keys(self.lake.store, "masking", pseudonyms.key_ids)
        if lost:
            lacks = "a key that was in the keyring is not any more: the same person would be another from here on"
            hint = f"put it back, behind the newer ones; if it is lost for good, delete {redact_uri(lost[0])}"
            raise PolicyError(f"{message}, and {lacks}", where="[masking] key", hint=hint)
        return pseudonyms


class Partition:
    """Rows of one date, and what masks do to them.

    Raises nothing of a value; `which` says of rows by column whether they are to be masked.
    """

    def __init__(self, of: Masks, parts: Parts, age: date, as_of: date, pseudonyms: Pseudonyms | None) -> None:
        self._of, self._parts, self._age, self._as_of, self._pseudonyms = of, parts, age, as_of, pseudonyms
        self._whole = {} if parts.columns else of.due_masks(parts, (), age, as_of)

    @property
    def digest(self) -> str:
        """Digest of what is masked and how, where that is so of all rows; empty where rows differ."""
        return mask_digest(self._whole) if self._whole else ""

    def item(self, day: date, partition: pa.Table) -> Item:
        """Return the partition as it is planned."""
        rules = {one.name: one for one in self._of.of_table}
        masked = sorted((self._whole or self._of.columns).items())
        names = ", ".join(f"{name} ({mask.spec})" for name, mask in masked)
        reasons = " ".join(dict.fromkeys(one.reason for _, one in sorted(rules.items())))
        return planned_item(
            self._of.contract,
            day,
            partition,
            self._as_of,
            max(self._of.days),
            reason=f"Masks {names}{'' if self._whole else ' of some rows'}: {reasons}",
            rule=", ".join(sorted(rules)),
            rows=0,
            part_sha256=self.digest or self._part_digest(partition),
        )

    def _part_digest(self, partition: pa.Table) -> str:
        """Return a digest of how many rows with which values come under which masks."""
        groups_by_path: dict[str, list[Group]] = {}
        for path, groups in self._parts.groups(partition):
            for group in groups:
                shown = self._of.due_masks(self._parts, group.values, self._age, self._as_of)
                groups_by_path.setdefault(path, []).append(Group((*group.values, mask_digest(shown)), group.rows))
        return part_digest(groups_by_path)

    def mask_rows(self, rows: pa.Table) -> pa.Table:
        """Return rows with the values masked that are due; a column that they lack has none."""
        for name, which in self.which(rows).items():
            if name not in rows.column_names:
                continue
            shown = self._mask_values(rows[name], self._of.columns[name])
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, rows.schema.field(name), pc.if_else(which, shown, rows[name]))
        return rows

    def has_unmasked(self, partition: pa.Table) -> bool:
        """Return whether a mask that is due would change a value."""
        names = list(dict.fromkeys([*self._parts.columns, *self._of.columns]))
        for _, rows in read_some(self._of.lake.tables, self._of.contract, partition, names):
            for name, which in self.which(rows).items():
                if not self._are_masked(name, pc.unique(rows[name].filter(which)).drop_null()):
                    return True
        return False

    def _are_masked(self, name: str, values: pa.Array) -> bool:
        return not len(self._of.opened.unmasked_values(values, self._of.columns[name], self._pseudonyms))

    def _mask_values(self, values: pa.ChunkedArray, mask: Mask) -> pa.ChunkedArray:
        chunks = [self._of.opened.mask_values(chunk, mask, self._pseudonyms) for chunk in values.chunks]
        return pa.chunked_array(chunks, values.type)

    def which(self, rows: pa.Table) -> dict[str, pa.Array]:
        """Return by column which rows are masked."""
        if not self._parts.columns:
            every = pa.array([True] * rows.num_rows)
            return dict.fromkeys(self._whole, every)

        def due(name: str) -> Callable[[Values], bool]:
            return lambda values: name in self._of.due_masks(self._parts, values, self._age, self._as_of)

        return {name: self._parts.mask(rows, due(name)) for name in self._of.columns}


def mask_digest(shown: ColumnMasks) -> str:
    """Return a digest of the masks of columns."""
    pairs = sorted((name, mask.spec) for name, mask in shown.items())
    return hashlib.sha256(json.dumps([MASKING, pairs]).encode()).hexdigest()


def _plans_that_masked(table: str, applied: Sequence[RetentionPlan]) -> dict[tuple[date, str], int]:
    """Return the last plan of the lake that masked a date of a table, by date and digest."""
    numbers: dict[tuple[date, str], int] = {}
    for plan in applied:
        for item in plan.items if plan.plan is not None and plan.intact else ():
            if item.table == table and item.is_mask:
                place = (item.partition_date, item.part_sha256 or "")
                numbers[place] = max(numbers.get(place, 0), plan.plan or 0)
    return numbers
