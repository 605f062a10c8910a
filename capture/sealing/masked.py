"""Masked: mask rows of importers and annotations before they are sealed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Self

import pyarrow as pa

from ranklake.capture.sealing.rows import Rows
from ranklake.lake.contracts.capture_masks import NO_MASKS, CaptureMasks, load_capture_masks
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.contracts.overlay import Overlay
from ranklake.masking.columns import NoPseudonymsError, mask_values
from ranklake.masking.masks import Pseudonyms
from ranklake.segments.segment import REFUSED_ROW


class SealedMasks:
    """Masks of whole columns, for commands, which report errors before anything is written."""

    def __init__(self, masks: CaptureMasks = NO_MASKS, pseudonyms: Pseudonyms | None = None) -> None:
        self._masks, self._pseudonyms = masks, pseudonyms

    @classmethod
    def of(cls, policy: Path | None, key: str, overlay: Path | Overlay | None) -> Self:
        """Return the masks of a policy. Raises `MaskError`, `NoPseudonymsError`, `MissingKeyError`."""
        if policy is None:
            return cls()
        masks = load_capture_masks(policy, load_contracts(overlay))
        if masks.hashed and not key:
            hint = "name a keyring by key under [masking] in ranklake.toml"
            raise NoPseudonymsError(f"{masks.hashed} is to be hashed at capture, and there is no key", hint=hint)
        return cls(masks, Pseudonyms.of(key) if masks.hashed else None)

    def masks(self, table: str, column: str) -> bool:
        """Whether a column is masked. Other columns must not be derived from its values then."""
        return column in self._masks.columns.get(table, {})

    def mask_rows(self, table: str, rows: Rows) -> Rows:
        """Return rows of a table with masked columns. Rows that did not convert keep only their place in the file."""
        masks = self._masks.columns.get(table)
        if not masks or not len(rows):
            return rows
        columns = {
            name: mask_values(values, masks[name], self._pseudonyms) if name in masks else values
            for name, values in rows.columns.items()
        }
        if REFUSED_ROW in columns:
            columns[REFUSED_ROW] = pa.array(
                [_without_text(text) for text in columns[REFUSED_ROW].to_pylist()], pa.string()
            )
        return replace(rows, columns=columns)


def _without_text(text: str) -> str:
    return json.dumps({name: value for name, value in json.loads(text).items() if name != "text"}, ensure_ascii=False)
