"""Masked: rows of importers and of what people say, masked before they are sealed. Pure, except that it reads keys."""

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
    """Masks of whole columns, for commands: what is wrong is raised, and nothing is written."""

    def __init__(self, masks: CaptureMasks = NO_MASKS, pseudonyms: Pseudonyms | None = None) -> None:
        self._masks, self._pseudonyms = masks, pseudonyms

    @classmethod
    def of(cls, policy: Path | None, key: str, overlay: Path | Overlay | None) -> Self:
        """Return those of a policy. Raises `MaskError`, `NoPseudonymsError`, `MissingKeyError`."""
        if policy is None:
            return cls()
        masks = load_capture_masks(policy, load_contracts(overlay))
        if masks.hashed and not key:
            hint = "name a keyring by key under [masking] in ranklake.toml"
            raise NoPseudonymsError(f"{masks.hashed} is to be hashed at capture, and there is no key", hint=hint)
        return cls(masks, Pseudonyms.of(key) if masks.hashed else None)

    def masks(self, table: str, column: str) -> bool:
        """Whether a column is masked: nothing may be derived from it then."""
        return column in self._masks.columns.get(table, {})

    def mask_rows(self, table: str, rows: Rows) -> Rows:
        """Return rows of a table as they may be written; of those that did not convert, where they stood."""
        masks = self._masks.columns.get(table)
        if not masks or not len(rows):
            return rows
        columns = {
            name: mask_values(values, masks[name], self._pseudonyms) if name in masks else values
            for name, values in rows.columns.items()
        }
        if REFUSED_ROW in columns:
            columns[REFUSED_ROW] = pa.array([_place(text) for text in columns[REFUSED_ROW].to_pylist()], pa.string())
        return replace(rows, columns=columns)


def _place(text: str) -> str:
    return json.dumps({name: value for name, value in json.loads(text).items() if name != "text"}, ensure_ascii=False)
