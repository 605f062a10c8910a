"""Masks: apply the masking policy to classified values before a row is written. Without a policy, nothing is masked.

Errors never stop training and never let a classified value through. A value that cannot be masked, because its key is
missing, becomes NULL, and the column ``unavailable`` gives the reason if the table has it. A row that requires the
value is counted as a gap. If the policy cannot be read, no classified value is written, except numbers that an overlay
adds to ``steps``: they are in slots, which no policy masks.
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
_MASKED: Final = "masked at capture"
_NO_KEY: Final = "there was no key to mask it with"
_NOTHING_CLASSIFIED: Final = "no classified column is recorded, except numbers added to steps"


class RowMasks:
    """The masks of one process.

    Parameters
    ----------
    masks
        Masks by table and column.
    contracts
        Contracts by table.
    source
        Source of the keys of pseudonyms.
    warn
        Called with a topic and a line for each problem.
    """

    def __init__(self, masks: CaptureMasks, contracts: Mapping[str, Contract], source: str, warn: Warn) -> None:
        self.masks, self._contracts, self._source, self._warn = masks, contracts, source, warn
        self.pseudonyms: Pseudonyms | None = None
        self._next = 0.0
        self.look()

    def look(self) -> None:
        """Read the keys if they are needed and not loaded yet. Called each second, by a thread that may block."""
        if self.pseudonyms is not None or not self.masks.hashed or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + TRY_AGAIN_S
        try:
            self.pseudonyms = self.keys()
        except RanklakeError as error:
            self._warn("masking key", f"{self.masks.hashed} and all other hashed columns are not recorded: {error}")

    def keys(self) -> Pseudonyms:
        """Return the keyed pseudonyms. Raises `ranklake.segments.envelope.MissingKeyError`."""
        if not self._source:
            hint = "name a keyring by key under [masking] in ranklake.toml"
            raise MissingKeyError(f"{self.masks.hashed} is to be hashed at capture, and there is no key", hint=hint)
        return Pseudonyms.of(self._source)

    def of(self, table: str) -> "RowMask | None":
        """Return the mask of a table's rows; None if the table has no masked columns."""
        masks = self.masks.columns.get(table)
        if not masks:
            return None
        contract = self._contracts[table]
        return RowMask(contract, {name: mask for name, mask in masks.items() if name in contract}, self.pseudonym)

    @property
    def frame(self) -> dict[str, Any] | None:
        """Frame of the masks for meta.frames, used when another process writes rows later; None without masks."""
        if not self.masks.columns:
            return None
        specs = {
            table: {name: mask.spec for name, mask in masks.items()} for table, masks in self.masks.columns.items()
        }
        return {"k": "masks", "t": specs}

    def pseudonym(self, text: str) -> str | None:
        """Return a text's pseudonym; None without a key."""
        return None if self.pseudonyms is None else self.pseudonyms(text)

    def masked_text(self, table: str, column: str, text: str) -> str:
        """Return a text masked as in a column of a table, for names that are derived from it."""
        mask = self.of(table)
        return text if mask is None else str(mask({column: text}).get(column) or "masked")


class RowMask:
    """Masks the rows of one table.

    Attributes
    ----------
    columns
        The masked columns.
    """

    def __init__(self, contract: Contract, masks: Mapping[str, Mask], hashed: Callable[[str], str | None]) -> None:
        self.columns = frozenset(masks)
        self._changes = {name: change_of(mask, contract.column(name).type, hashed) for name, mask in masks.items()}
        self._required = frozenset(name for name in masks if contract.column(name).required)
        self._nullified = frozenset(name for name, mask in masks.items() if mask == NULLIFY)
        self._has_unavailable = _UNAVAILABLE in contract

    def __call__(self, row: Row) -> Row:
        """Return a row with masked values. Raises `RefusedError` if a required value cannot be masked."""
        masked_row, reasons = dict(row), {}
        for name, change in self._changes.items():
            value = masked_row.pop(name, None)
            if value is None:
                continue
            try:
                masked = change(value)
            except Exception:  # noqa: BLE001 - the value must be neither written nor logged
                masked = None
            if masked is not None:
                masked_row[name] = masked
            elif name in self._required:
                raise RefusedError(NOT_MASKED, f"{name}: {_NO_KEY}")
            else:
                reasons[name] = _MASKED if name in self._nullified else _NO_KEY
        if reasons and self._has_unavailable:
            masked_row[_UNAVAILABLE] = json.dumps({**_parse_object(masked_row.get(_UNAVAILABLE)), **reasons})
        return masked_row


def mask_of_stream(contract: Contract, spec: Mapping[str, str]) -> RowMask | None:
    """Return the mask that a stream's process applied to a table's rows; None if it masked none of its columns.

    Hashed columns become NULL, because the stream does not contain the key. So do columns whose mask is unknown here.
    """
    masks = {name: _mask(contract, name, mask) for name, mask in spec.items() if name in contract}
    return RowMask(contract, masks, lambda _: None) if masks else None


def _mask(contract: Contract, name: str, spec: str) -> Mask:
    try:
        mask = Mask.parse(spec, "the stream")
    except MaskError:  # of a later version
        return NULLIFY
    return mask if mask.applies_to(contract.column(name).type) else NULLIFY


def _parse_object(text: object) -> dict[str, Any]:
    try:
        names = json.loads(str(text or "{}"))
    except ValueError:
        return {}
    return names if isinstance(names, dict) else {}


def row_masks(settings: CaptureSettings, warn: Warn) -> RowMasks:
    """Return the masks of the configured policy. If it cannot be read, warn, and mask all classified columns."""
    if not settings.masking_policy:
        return RowMasks(NO_MASKS, {}, "", warn)
    contracts: Mapping[str, Contract] = load_contracts()
    try:
        if settings.contracts_overlay:
            contracts = load_contracts(Path(settings.contracts_overlay))
        masks = load_capture_masks(Path(settings.masking_policy), contracts)
    except Exception as error:  # noqa: BLE001 - users pass any value
        warn("masking policy", f"{_NOTHING_CLASSIFIED}, because the masking policy cannot be used: {error}")
        masks = every_classified(contracts)
    return RowMasks(masks, contracts, settings.masking_key, warn)
