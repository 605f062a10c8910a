"""Masks at capture: which columns are masked before a row is written, as the operator's policy says.

    at_capture:
      since: 2027-01-01                  rows of this day and later are masked: what the proof goes by
      masked: [pseudonymous]             columns of these classes, as their contracts say
      masks:                             or otherwise: a class, or one column
        personal: nullify
        runs.git_branch: keep:2
      seen: [gpu_samples.host]           as they are, whatever their class

The column's own word goes first, then `masks` of its class, then `masked`. It is for the tables that ranks and
importers write, in frames; numbers of slots (own columns of ``steps``) are not masked before they are stored.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import yaml

from ranklake.errors import did_you_mean
from ranklake.lake.contracts.errors import UnknownColumnError
from ranklake.lake.contracts.model import CLASSES, Column, Contract
from ranklake.masking.masks import NULLIFY, Mask, MaskError, default_mask

SECTION: Final = "at_capture"
_KEYS: Final = ("since", "masked", "masks", "seen")
_ENVELOPE_ENDS: Final = 20
_IN_SLOTS: Final = frozenset({"steps", "scalars", "spans", "distributions"})
Columns = Mapping[str, Mapping[str, Mask]]
"""Masks by table and column."""


@dataclass(frozen=True, slots=True)
class CaptureMasks:
    """What is masked at capture.

    Attributes
    ----------
    columns
        Masks by table and column; tables without any are left out.
    since
        The first day of whose rows that is so; None: of all rows.
    """

    columns: Columns = field(default_factory=lambda: MappingProxyType({}))
    since: date | None = None

    @property
    def hashed(self) -> str:
        """A column that is masked by a keyed hash, as ``table.column``; empty if there is none."""
        every = ((f"{table}.{name}", mask) for table, of in self.columns.items() for name, mask in of.items())
        return next((name for name, mask in every if mask.kind == "hash"), "")


NO_MASKS: Final = CaptureMasks()


def load_capture_masks(path: Path, contracts: Mapping[str, Contract]) -> CaptureMasks:
    """Read a masking policy. Raises `MaskError` if anything in it is not understood, or cannot be held to."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        what = f"no masking policy can be read ({type(error).__name__})"
        raise MaskError(what, where=str(path), hint="fix the file") from error
    body = document.get(SECTION) if isinstance(document, dict) and set(document) == {SECTION} else None
    if not isinstance(body, dict):
        hint = f"write masks under {SECTION}:, and nothing beside it"
        raise MaskError("no masks at capture", where=str(path), hint=hint)
    return _Reader(f"{path}: {SECTION}", contracts).read(body)


def every_classified(contracts: Mapping[str, Contract]) -> CaptureMasks:
    """Return masks that leave nothing of any classified column: where a policy was named and cannot be read.

    Numbers of slots come through: what masks rows of frames never meets them.
    """
    return CaptureMasks(_by_table((one, column, NULLIFY) for one, column in _classified(contracts.values())))


class _Reader:
    def __init__(self, place: str, contracts: Mapping[str, Contract]) -> None:
        self._place, self._contracts = place, {one.name: one for one in contracts.values()}

    def read(self, body: Mapping[Any, Any]) -> CaptureMasks:
        for key in body:
            self._known("key", key, _KEYS)
        since = body.get("since")
        if since is not None and (not isinstance(since, date) or isinstance(since, datetime)):
            raise MaskError("since is no day", where=self._place, hint="write since: 2027-01-01")
        masked = self._names("masked", body.get("masked", []), "write masked: [pseudonymous]")
        for one in masked:
            self._known("class", one, CLASSES)
        seen = {self._column(one) for one in self._names("seen", body.get("seen", []), "write seen: [ranks.host]")}
        classes, columns = self._masks(body.get("masks", {}))
        if twice := sorted(seen & columns.keys()):
            what = f"{'.'.join(twice[0])} is to be both seen and masked"
            raise MaskError(what, where=self._place, hint="take it out of one of the two")
        found = [(self._contracts[table], name, mask) for (table, name), mask in columns.items()]
        for contract, column in _classified(self._contracts.values()):
            place = contract.name, column.name
            if place in seen or place in columns:
                continue
            if (mask := self._by_class(contract, column, classes, masked)) is not None:
                found.append((contract, column.name, mask))
        return CaptureMasks(_by_table((one, one.column(name), mask) for one, name, mask in found), since)

    def _by_class(
        self, contract: Contract, column: Column, classes: Mapping[str, Mask], masked: list[str]
    ) -> Mask | None:
        mask = classes.get(column.class_)
        if mask is None and column.class_ in masked:
            mask = default_mask(column.mask, column.class_, column.type)
        if mask is None:
            return None
        mask = mask if mask.fits(column.type) else NULLIFY
        self._refuse(contract, column, mask, f"add {contract.name}.{column.name} to seen, and mask it by retention")
        return mask

    def _masks(self, said: object) -> tuple[dict[str, Mask], dict[tuple[str, str], Mask]]:
        if not isinstance(said, dict):
            hint = "write masks: {personal: nullify, runs.user: hash}"
            raise MaskError("masks is not a mapping of masks", where=self._place, hint=hint)
        classes, columns = {}, {}
        for key, text in said.items():
            mask = Mask.parse(text, f"{self._place}: masks: {key}")
            if "." not in str(key):
                self._known("class", key, CLASSES)
                classes[str(key)] = mask
                continue
            table, name = self._column(str(key))
            contract = self._contracts[table]
            column = contract.column(name)
            if not mask.fits(column.type):
                what = f"{mask.said} does not fit {key}, of type {column.type}"
                hint = f"{mask.said} is for {mask.fitting}; nullify is for all"
                raise MaskError(what, where=self._place, hint=hint)
            self._refuse(contract, column, mask, "mask it in roles, or by retention")
            columns[table, name] = mask
        return classes, columns

    def _refuse(self, contract: Contract, column: Column, mask: Mask, hint: str) -> None:
        """Raise `MaskError` where a column cannot be masked before it is stored."""
        name = f"{contract.name}.{column.name}"
        if column.name in contract.grain or column.id < _ENVELOPE_ENDS:
            what = f"{name} tells rows apart: masked at capture, a row that is sent again would be another"
            raise MaskError(what, where=self._place, hint=hint)
        if contract.table in _IN_SLOTS:
            what = f"{name} is written in slots, which are not masked at capture"
            raise MaskError(what, where=self._place, hint=hint)
        if mask.kind == "nullify" and column.required:
            raise MaskError(f"{name} is required, and would be NULL", where=self._place, hint="write redact or hash")

    def _column(self, said: str) -> tuple[str, str]:
        table, _, name = said.partition(".")
        recorded = [one.name for one in self._contracts.values() if _is_recorded(one)]
        self._known("recorded table", table, recorded)
        try:
            self._contracts[table].column(name)
        except UnknownColumnError as error:
            raise MaskError(error.what, where=self._place, hint=error.hint) from error
        return table, name

    def _names(self, key: str, said: object, hint: str) -> list[str]:
        if not isinstance(said, list) or not all(isinstance(one, str) for one in said):
            raise MaskError(f"{key} is no list", where=self._place, hint=hint)
        return said

    def _known(self, noun: str, said: object, known: Collection[str]) -> None:
        if said not in known:
            raise MaskError(f"unknown {noun} {said!r}", where=self._place, hint=did_you_mean(str(said), known))


def _is_recorded(contract: Contract) -> bool:
    return contract.envelope and contract.kind == "fact"


def _classified(contracts: Iterable[Contract]) -> Iterator[tuple[Contract, Column]]:
    for one in contracts:
        if _is_recorded(one):
            yield from ((one, column) for column in one.columns if column.class_ != "operational")


def _by_table(found: Iterator[tuple[Contract, Column, Mask]]) -> Columns:
    tables: dict[str, dict[str, Mask]] = {}
    for contract, column, mask in found:
        tables.setdefault(contract.table, {})[column.name] = mask
    return MappingProxyType({table: MappingProxyType(of) for table, of in sorted(tables.items())})
