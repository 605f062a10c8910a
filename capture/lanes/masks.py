"""Masks: what becomes of classified values before a row is written; nothing where no policy asks for it.

It fails closed and never stops training. A value that cannot be masked, since its key is not there, is NULL, and
``unavailable`` says so where the table has that; a row that needs the value is counted as a gap. Where the policy
itself cannot be read, no classified value is written, except numbers that an overlay adds to ``steps``: those are in
slots, which no policy is about.
"""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from ranklake.capture.common.gaps import NOT_MASKED, RefusedError
from ranklake.capture.common.settings import CaptureSettings
from ranklake.capture.lanes.policies import Warn
from ranklake.errors import RanklakeError
from ranklake.lake.contracts.capture_masks import NO_MASKS, CaptureMasks, every_classified, load_capture_masks
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.contracts.model import Contract
from ranklake.masking.masks import NULLIFY, Mask, MaskError, Pseudonyms
from ranklake.masking.values import change_of
from ranklake.segments.envelope import MissingKeyError

Row = dict[str, Any]
TRY_AGAIN_S: Final = 10.0
_UNAVAILABLE: Final = "unavailable"
_WHY: Final = "masked at capture"
_NO_KEY: Final = "there was no key to mask it with"
_NOTHING_CLASSIFIED: Final = "no classified column is recorded, but for numbers added to steps"


class RowMasks:
    """The masks of one process.

    Parameters
    ----------
    masks
        What is masked.
    contracts
        Contracts by table.
    source
        Where the keys of pseudonyms are.
    warn
        Told, by topic, of what is wrong.
    """

    def __init__(self, masks: CaptureMasks, contracts: Mapping[str, Contract], source: str, warn: Warn) -> None:
        self.masks, self._contracts, self._source, self._warn = masks, contracts, source, warn
        self.pseudonyms: Pseudonyms | None = None
        self._next = 0.0
        self.look()

    def look(self) -> None:
        """Read the keys where they are needed and not known yet; called each second, by a thread that may wait."""
        if self.pseudonyms is not None or not self.masks.hashed or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + TRY_AGAIN_S
        try:
            self.pseudonyms = self.keys()
        except RanklakeError as error:
            self._warn("masking key", f"{self.masks.hashed} is not recorded, nor is what else is hashed: {error}")

    def keys(self) -> Pseudonyms:
        """Return the pseudonyms. Raises `ranklake.segments.envelope.MissingKeyError`."""
        if not self._source:
            hint = "name a keyring by key under [masking] in ranklake.toml"
            raise MissingKeyError(f"{self.masks.hashed} is to be hashed at capture, and there is no key", hint=hint)
        return Pseudonyms.of(self._source)

    def of(self, table: str) -> "RowMask | None":
        """Return what masks rows of a table, as they are recorded; None where nothing is to be done."""
        masks = self.masks.columns.get(table)
        if not masks:
            return None
        contract = self._contracts[table]
        return RowMask(contract, {name: mask for name, mask in masks.items() if name in contract}, self.pseudonym)

    @property
    def frame(self) -> dict[str, Any] | None:
        """What a stream says of them, for whoever writes a row after its process is dead; None where there are none."""
        if not self.masks.columns:
            return None
        names = {table: {name: mask.spec for name, mask in of.items()} for table, of in self.masks.columns.items()}
        return {"k": "masks", "t": names}

    def pseudonym(self, text: str) -> str | None:
        """Return a text's pseudonym; None where there is no key."""
        return None if self.pseudonyms is None else self.pseudonyms(text)

    def masked_text(self, table: str, column: str, text: str) -> str:
        """Return a text as a column of a table would show it: for names that are made of it."""
        mask = self.of(table)
        return text if mask is None else str(mask({column: text}).get(column) or "masked")


class RowMask:
    """Masks the rows of one table.

    Attributes
    ----------
    columns
        Those that it masks.
    """

    def __init__(self, contract: Contract, masks: Mapping[str, Mask], hashed: Callable[[str], str | None]) -> None:
        self.columns = frozenset(masks)
        self._changes = {name: change_of(mask, contract.column(name).type, hashed) for name, mask in masks.items()}
        self._required = frozenset(name for name in masks if contract.column(name).required)
        self._nothing = frozenset(name for name, mask in masks.items() if mask == NULLIFY)
        self._says_why = _UNAVAILABLE in contract

    def __call__(self, row: Row) -> Row:
        """Return a row with its values masked. Raises `RefusedError` where it needs one that has no masked form."""
        shown, lost = dict(row), {}
        for name, change in self._changes.items():
            value = shown.pop(name, None)
            if value is None:
                continue
            try:
                masked = change(value)
            except Exception:  # noqa: BLE001 - whatever it is, the value must not be written, nor told of
                masked = None
            if masked is not None:
                shown[name] = masked
            elif name in self._required:
                raise RefusedError(NOT_MASKED, f"{name}: {_NO_KEY}")
            else:
                lost[name] = _WHY if name in self._nothing else _NO_KEY
        if lost and self._says_why:
            shown[_UNAVAILABLE] = json.dumps({**_spec(shown.get(_UNAVAILABLE)), **lost})
        return shown


def mask_of_stream(contract: Contract, spec: Mapping[str, str]) -> RowMask | None:
    """Return what masks rows of a table as a stream says that its process did; None where it says nothing.

    What it hashed is NULL, for no key is written down; so is what it masked as nobody here knows how to.
    """
    masks = {name: _mask(contract, name, mask) for name, mask in spec.items() if name in contract}
    return RowMask(contract, masks, lambda _: None) if masks else None


def _mask(contract: Contract, name: str, spec: str) -> Mask:
    try:
        mask = Mask.parse(spec, "the stream")
    except MaskError:  # of a later version
        return NULLIFY
    return mask if mask.applies_to(contract.column(name).type) else NULLIFY


def _spec(text: object) -> dict[str, Any]:
    try:
        names = json.loads(str(text or "{}"))
    except ValueError:
        return {}
    return names if isinstance(names, dict) else {}


def row_masks(settings: CaptureSettings, warn: Warn) -> RowMasks:
    """Return the masks that settings ask for; if their policy cannot be read, that is reported, and all masked."""
    if not settings.masking_policy:
        return RowMasks(NO_MASKS, {}, "", warn)
    contracts: Mapping[str, Contract] = load_contracts()
    try:
        if settings.contracts_overlay:
            contracts = load_contracts(Path(settings.contracts_overlay))
        masks = load_capture_masks(Path(settings.masking_policy), contracts)
    except Exception as error:  # noqa: BLE001 - users hand over anything
        warn("masking policy", f"{_NOTHING_CLASSIFIED}, for the masking policy cannot be used: {error}")
        masks = every_classified(contracts)
    return RowMasks(masks, contracts, settings.masking_key, warn)
