"""Values that are due to be masked by rules with ``mask_after_days``, and the rewriting of their files.

    rules with mask_after_days ──▶ columns of rows, with their masks ──▶ values not masked yet ──▶ files rewritten

A column's mask is in its contract. The register shows which files an applied plan masked; these are not read again. In
other files, the columns are read until a value is found that the mask would change. So a masked date is not due again,
even after its files were merged or a key was rotated.
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


_OPAQUE: Final = frozenset({"nullify", "hash"})
"""Masks that do not depend on the content of a sealed value, so that no key is needed."""


class SealedMasks:
    """Masks values of a table, including values that are sealed under keys of people.

    Its methods raise the errors of `ranklake.retention.subjects.store.KeyStore` if a mask needs keys that are missing.
    """

    def __init__(self, lake: "Lake", contract: "Contract") -> None:
        self._lake, self._contract = lake, contract

    @cached_property
    def _keys(self) -> "Mapping[str, SubjectKey]":
        return KeyStore(self._lake).by_id() if has_keys(self._lake) else {}

    def needs_keys(self, masks: "Mapping[str, Mask]") -> bool:
        """Return whether some of the masks, given by column, may have to open sealed values."""
        columns = {f"{self._contract.table}.{name}" for name, mask in masks.items() if mask.kind not in _OPAQUE}
        return bool(columns) and not columns.isdisjoint(Lineage(self._lake.store).sealed_columns(self._contract))

    def mask_values(self, values: pa.Array, mask: "Mask", pseudonyms: "Pseudonyms | None") -> pa.Array:
        """Return masked values; a sealed value is masked in clear and sealed again.

        See `ranklake.masking.columns.mask_values`.
        """
        if mask.kind in _OPAQUE or not _are_sealed(values):
            return mask_values(values, mask, pseudonyms)
        dictionary = values.cast(pa.string()).dictionary_encode()
        texts = dictionary.dictionary.to_pylist()
        clear = pa.array([self.clear(text) for text in texts], pa.string())
        masked = mask_values(clear, mask, pseudonyms).to_pylist()
        sealed = [self._seal_like(*pair) for pair in zip(texts, masked, strict=True)]
        return pa.array(sealed, pa.string()).take(dictionary.indices)

    def unmasked_values(self, values: pa.Array, mask: "Mask", pseudonyms: "Pseudonyms | None") -> pa.Array:
        """Return the values that are not masked yet; see `ranklake.masking.columns.unmasked_values`."""
        if mask.kind in _OPAQUE or not _are_sealed(values):
            return unmasked_values(values, mask, pseudonyms)
        masked = self.mask_values(values, mask, pseudonyms)
        return values.filter(pc.fill_null(pc.not_equal(masked, values.cast(pa.string())), fill_value=False))

    def readable(self, values: pa.Array) -> pa.Array:
        """Return distinct values in clear, without sealed values that cannot be opened here."""
        if not _are_sealed(values):
            return values
        if not self._lake.config.subjects.keys:
            return values.filter(pc.invert(_is_sealed(values)))
        return pa.array([self.clear(text) for text in values.to_pylist()], pa.string()).drop_null()

    def clear(self, text: str) -> str | None:
        """Return a text in clear; None if it is sealed and no key opens it."""
        return unseal_text(text, self._keys) if sealed_by(text) is not None else text

    def _seal_like(self, text: str, masked: str | None) -> str | None:
        """Return a masked text, sealed under the key of the original text; the original if it could not be opened."""
        key_id = sealed_by(text)
        if key_id is None:
            return masked
        return text if masked is None else self._keys[key_id].seal(masked)


def _are_sealed(values: pa.Array) -> bool:
    """Return whether any of the values is sealed."""
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
        Retention plans that were applied and not cancelled.

    Attributes
    ----------
    rules, of_table
        Rules that mask or set a minimum; and those of them that mask columns of this table.
    columns
        Columns that a rule masks, with their masks; empty if no rule masks this table.
    sealed_masks
        Masks values, including values that are sealed under keys of people.
    """

    def __init__(
        self, lake: "Lake", contract: "Contract", rules: "Sequence[Rule]", applied: Sequence[RetentionPlan]
    ) -> None:
        self.lake, self.contract = lake, contract
        self.rules = tuple(rule for rule in rules if MASKING in rule.action_days or rule.minimum_days is not None)
        self.of_table = tuple(rule for rule in self.rules if MASKING in rule.action_days and rule.may_match(contract))
        patterns = {pattern for rule in self.of_table for pattern in rule.where.get("column", ())}
        masks = maskable(contract)
        self.columns = {name: masks[name] for name in masks if any(fnmatchcase(name, glob) for glob in patterns)}
        self.sealed_masks = SealedMasks(lake, contract)
        self._plans_that_masked = _plans_that_masked(contract.table, applied)

    @property
    def days(self) -> list[int]:
        """The ages in days from which the table's rules mask."""
        return [rule.action_days[MASKING] for rule in self.of_table]

    def due(self, as_of: date, parts_of: Callable[[date], Parts], skip: Collection[date]) -> Iterator[DuePartition]:
        """Yield the partitions with values that are due, except for the dates to skip.

        Parameters
        ----------
        parts_of
            Returns these rules, with the legal holds of a date.

        Raises `PolicyError` if columns are hashed and the key is missing, and the errors of
        `ranklake.retention.subjects.store` if a mask needs keys of people that are missing.
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
                partition_masks.item(day, partition), partition, partition, mask_rows=partition_masks.mask_rows
            )

    def applied_to(self, rows: pa.Table, parts: Parts, age: date, as_of: date) -> pa.Table:
        """Return rows of one age with due values masked. Raises `PolicyError` as `due` does."""
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
        """Return whether an applied plan wrote all files of a partition, with these masks for all rows.

        Always False if masks need keys of people: a key that was missing then may be available now.
        """
        if self.sealed_masks.needs_keys(self.columns):
            return False
        plan = self._plans_that_masked.get((day, digest), 0)
        return all((plan_of(path) or plan + 1) <= plan for path in partition["path"].to_pylist())

    @cached_property
    def _ring(self) -> Pseudonyms | None:
        """The keyring that hashes values, read once; None if no column is hashed. Raises `PolicyError`."""
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
            problem = "a key that was in the keyring is not any more: the same person would be another from here on"
            hint = f"put it back, behind the newer ones; if it is lost for good, delete {redact_uri(lost[0])}"
            raise PolicyError(f"{message}, and {problem}", where="[masking] key", hint=hint)
        return pseudonyms


class Partition:
    """Masks the rows of one date."""

    def __init__(self, masks: Masks, parts: Parts, age: date, as_of: date, pseudonyms: Pseudonyms | None) -> None:
        self._masks, self._parts, self._age, self._as_of, self._pseudonyms = masks, parts, age, as_of, pseudonyms
        self._of_all_rows = {} if parts.columns else masks.due_masks(parts, (), age, as_of)

    @property
    def digest(self) -> str:
        """Digest of the masks if they are the same for all rows; empty if rows differ."""
        return mask_digest(self._of_all_rows) if self._of_all_rows else ""

    def item(self, day: date, partition: pa.Table) -> Item:
        """Return the partition as an item of a plan."""
        rules = {rule.name: rule for rule in self._masks.of_table}
        columns = sorted((self._of_all_rows or self._masks.columns).items())
        names = ", ".join(f"{name} ({mask.spec})" for name, mask in columns)
        reasons = " ".join(dict.fromkeys(rule.reason for _, rule in sorted(rules.items())))
        return planned_item(
            self._masks.contract,
            day,
            partition,
            self._as_of,
            max(self._masks.days),
            reason=f"Masks {names}{'' if self._of_all_rows else ' of some rows'}: {reasons}",
            rule=", ".join(sorted(rules)),
            rows=0,
            part_sha256=self.digest or self._part_digest(partition),
        )

    def _part_digest(self, partition: pa.Table) -> str:
        """Return a digest of the number of rows by their values and masks."""
        groups_by_path: dict[str, list[Group]] = {}
        for path, groups in self._parts.groups(partition):
            for group in groups:
                masks = self._masks.due_masks(self._parts, group.values, self._age, self._as_of)
                groups_by_path.setdefault(path, []).append(Group((*group.values, mask_digest(masks)), group.rows))
        return part_digest(groups_by_path)

    def mask_rows(self, rows: pa.Table) -> pa.Table:
        """Return rows with due values masked."""
        for name, is_due in self.due_rows(rows).items():
            if name not in rows.column_names:
                continue
            masked = self._mask_values(rows[name], self._masks.columns[name])
            index = rows.schema.get_field_index(name)
            rows = rows.set_column(index, rows.schema.field(name), pc.if_else(is_due, masked, rows[name]))
        return rows

    def has_unmasked(self, partition: pa.Table) -> bool:
        """Return whether a due mask would change a value."""
        names = list(dict.fromkeys([*self._parts.columns, *self._masks.columns]))
        for _, rows in read_some(self._masks.lake.tables, self._masks.contract, partition, names):
            for name, is_due in self.due_rows(rows).items():
                if not self._are_masked(name, pc.unique(rows[name].filter(is_due)).drop_null()):
                    return True
        return False

    def _are_masked(self, name: str, values: pa.Array) -> bool:
        return not len(self._masks.sealed_masks.unmasked_values(values, self._masks.columns[name], self._pseudonyms))

    def _mask_values(self, values: pa.ChunkedArray, mask: Mask) -> pa.ChunkedArray:
        chunks = [self._masks.sealed_masks.mask_values(chunk, mask, self._pseudonyms) for chunk in values.chunks]
        return pa.chunked_array(chunks, values.type)

    def due_rows(self, rows: pa.Table) -> dict[str, pa.Array]:
        """Return a Boolean array by column, which is true for the rows whose value is due."""
        if not self._parts.columns:
            return dict.fromkeys(self._of_all_rows, pa.array([True] * rows.num_rows))

        def is_due(name: str) -> Callable[[Values], bool]:
            return lambda values: name in self._masks.due_masks(self._parts, values, self._age, self._as_of)

        return {name: self._parts.mask(rows, is_due(name)) for name in self._masks.columns}


def mask_digest(masks: ColumnMasks) -> str:
    """Return a digest of masks by column."""
    pairs = sorted((name, mask.spec) for name, mask in masks.items())
    return hashlib.sha256(json.dumps([MASKING, pairs]).encode()).hexdigest()


def _plans_that_masked(table: str, applied: Sequence[RetentionPlan]) -> dict[tuple[date, str], int]:
    """Return the number of the last plan that masked a date of a table, by date and digest of the masks."""
    numbers: dict[tuple[date, str], int] = {}
    for plan in applied:
        for item in plan.items if plan.plan is not None and plan.intact else ():
            if item.table == table and item.is_mask:
                key = (item.partition_date, item.part_sha256 or "")
                numbers[key] = max(numbers.get(key, 0), plan.plan or 0)
    return numbers
