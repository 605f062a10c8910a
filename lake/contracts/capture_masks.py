"""Masks at capture: the section of an operator's masking policy for columns that are masked before a row is written.

    at_capture:
      since: 2027-01-01                  the proof of masking checks rows of this day and later
      masked: [pseudonymous]             mask columns of these classes as their contracts define
      masks:                             use these masks instead, for a class or for one column
        personal: nullify
        runs.git_branch: keep:2
      seen: [gpu_samples.host]           do not mask these columns

`seen` and `masks` of a column have precedence over `masks` of its class, and these over `masked`. The policy applies
to tables that ranks and importers write as frames. Numbers in slots (own columns of ``steps``) cannot be masked.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ranklake.errors import did_you_mean
from ranklake.lake.contracts.model import CLASSES, Column, Contract
from ranklake.lake.contracts.schema import validate
from ranklake.masking.masks import NULLIFY, Mask, MaskError, default_mask
from ranklake.operator_files import KeyPath, OperatorFile

SECTION: Final = "at_capture"
_ENVELOPE_ENDS: Final = 20
_IN_SLOTS: Final = frozenset({"steps", "scalars", "spans", "distributions"})
Columns = Mapping[str, Mapping[str, Mask]]
"""Masks by table and column."""


@dataclass(frozen=True, slots=True)
class CaptureMasks:
    """Masks that apply at capture.

    Attributes
    ----------
    columns
        Masks by table and column. Tables without masks are left out.
    since
        First day whose rows are masked; None if all rows are.
    """

    columns: Columns = field(default_factory=lambda: MappingProxyType({}))
    since: date | None = None

    @property
    def hashed(self) -> str:
        """The first column with a keyed hash as mask, as ``table.column``; empty if there is none."""
        return next(
            (
                f"{table}.{name}"
                for table, masks in self.columns.items()
                for name, mask in masks.items()
                if mask.kind == "hash"
            ),
            "",
        )


NO_MASKS: Final = CaptureMasks()


def load_capture_masks(path: Path, contracts: Mapping[str, Contract]) -> CaptureMasks:
    """Read a masking policy. Raises `MaskError` with all problems: unknown names, and masks that cannot be applied."""
    file = OperatorFile(path, error=MaskError, noun="masking policy")
    validate(file, "masks_at_capture")
    masks = _Reader(file, contracts).read()
    file.raise_errors()
    return masks


def every_classified(contracts: Mapping[str, Contract]) -> CaptureMasks:
    """Return masks that nullify all classified columns. Used if a configured policy cannot be read.

    Numbers in slots are not masked, because only rows in frames are.
    """
    columns = _classified_columns(contracts.values())
    return CaptureMasks(_by_table((contract, column.name, NULLIFY) for contract, column in columns))


class _Reader:
    """Builds masks from a file that the schema has validated. Adds masks that cannot be applied as problems."""

    def __init__(self, file: OperatorFile, contracts: Mapping[str, Contract]) -> None:
        self._file, self._contracts = file, {contract.name: contract for contract in contracts.values()}
        self._recorded = [contract.name for contract in self._contracts.values() if _is_recorded(contract)]

    def read(self) -> CaptureMasks:
        body = self._file.content[SECTION]
        masked: list[str] = body.get("masked", [])
        places = (self._column(("seen", at), name) for at, name in enumerate(body.get("seen", [])))
        seen = {place for place in places if place is not None}
        of_classes, of_columns = self._masks(body.get("masks", {}))
        for table, name in sorted(seen & of_columns.keys()):
            message = f"{table}.{name} is to be both seen and masked"
            self._add(("masks", f"{table}.{name}"), message, "take it out of one of the two")
        masks = [(self._contracts[table], name, mask) for (table, name), mask in of_columns.items()]
        for contract, column in _classified_columns(self._contracts.values()):
            place = contract.name, column.name
            if place not in seen and place not in of_columns:
                at = ("masks", column.class_) if column.class_ in of_classes else ("masked",)
                mask = self._by_class(at, contract, column, of_classes, masked)
                masks += [] if mask is None else [(contract, column.name, mask)]
        return CaptureMasks(_by_table(masks), self._parse_date(body.get("since")))

    def _parse_date(self, text: str | None) -> date | None:
        try:
            return None if text is None else date.fromisoformat(text)
        except ValueError:
            self._add(("since",), f"{SECTION}.since must be a day such as 2027-06-30, not {text!r}", "")
            return None

    def _by_class(
        self, at: KeyPath, contract: Contract, column: Column, of_classes: Mapping[str, Mask], masked: list[str]
    ) -> Mask | None:
        mask = of_classes.get(column.class_)
        if mask is None and column.class_ in masked:
            mask = default_mask(column.mask, column.class_, column.type)
        if mask is None:
            return None
        mask = mask if mask.applies_to(column.type) else NULLIFY
        hint = f"add {contract.name}.{column.name} to seen, and mask it by retention"
        self._refuse_unmaskable(at, contract, column, mask, hint)
        return mask

    def _masks(self, texts: Mapping[str, str | None]) -> tuple[dict[str, Mask], dict[tuple[str, str], Mask]]:
        of_classes: dict[str, Mask] = {}
        of_columns: dict[tuple[str, str], Mask] = {}
        for key, text in texts.items():
            at = ("masks", key)
            try:
                mask = Mask.parse(text, "")
            except MaskError as error:
                self._add(at, error.what, error.hint)
                continue
            if "." not in key:
                self._check_known(at, "class", key, CLASSES)
                of_classes[key] = mask
            elif (place := self._column(at, key)) is not None:
                contract = self._contracts[place[0]]
                column = contract.column(place[1])
                if not mask.applies_to(column.type):
                    message = f"{mask.spec} does not fit {key}, of type {column.type}"
                    self._add(at, message, f"{mask.spec} is for {mask.fitting}; nullify is for all")
                else:
                    self._refuse_unmaskable(at, contract, column, mask, "mask it in roles, or by retention")
                of_columns[place] = mask
        return of_classes, of_columns

    def _refuse_unmaskable(self, at: KeyPath, contract: Contract, column: Column, mask: Mask, hint: str) -> None:
        """Add a problem if a column cannot be masked before it is stored."""
        name = f"{contract.name}.{column.name}"
        if column.name in contract.grain or column.id < _ENVELOPE_ENDS:
            message = f"{name} tells rows apart: masked at capture, a row that is sent again would be another"
            self._add(at, message, hint)
        elif contract.table in _IN_SLOTS:
            self._add(at, f"{name} is written in slots, which are not masked at capture", hint)
        elif mask.kind == "nullify" and column.required:
            self._add(at, f"{name} is required, and would be NULL", "write redact or hash")

    def _column(self, at: KeyPath, text: str) -> tuple[str, str] | None:
        table, _, name = text.partition(".")
        if self._check_known(at, "recorded table", table, self._recorded):
            contract = self._contracts[table]
            if self._check_known(at, f"column of {table}", name, contract.names):
                return table, name
        return None

    def _check_known(self, at: KeyPath, noun: str, name: str, known: Collection[str]) -> bool:
        if name not in known:
            self._add(at, f"unknown {noun} {name!r}", did_you_mean(name, known))
        return name in known

    def _add(self, at: KeyPath, message: str, hint: str) -> None:
        self._file.add((SECTION, *at), message, hint)


def _is_recorded(contract: Contract) -> bool:
    return contract.envelope and contract.kind == "fact"


def _classified_columns(contracts: Iterable[Contract]) -> Iterator[tuple[Contract, Column]]:
    for contract in contracts:
        if _is_recorded(contract):
            yield from ((contract, column) for column in contract.columns if column.class_ != "operational")


def _by_table(masks: Iterable[tuple[Contract, str, Mask]]) -> Columns:
    tables: dict[str, dict[str, Mask]] = {}
    for contract, name, mask in masks:
        tables.setdefault(contract.table, {})[name] = mask
    return MappingProxyType({table: MappingProxyType(columns) for table, columns in sorted(tables.items())})
