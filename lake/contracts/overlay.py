"""Overlays: an operator's own contracts, metrics and rollups as texts, which travel where their folder does not.

    own/<table>.yaml            a table, or more columns and checks of a packaged one
    own/metrics.yaml            metrics
    own/rollups/<table>.sql     the query of a derived table

A lake keeps the overlays that it was written under (`ranklake.lake.storage.overlays`), a recording process writes its
own into its stream. So workers of a cluster, a node's agent and a lake whose operator removed the folder know what the
rows mean.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Self

from ranklake.lake.contracts.errors import ContractError

METRICS: Final = "metrics.yaml"
QUERIES: Final = "rollups"
MAX_BYTES: Final = 8 * 2**20
"""What all files of an overlay may have together: more than a thousand wide tables."""


@dataclass(frozen=True)
class Overlay:
    """The files of an overlay.

    Attributes
    ----------
    files
        Texts by path within the folder.
    origin
        Where they are from; errors name it.
    """

    files: Mapping[str, str]
    origin: str

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a folder. Raises `ContractError` if there is none, or for a file that would otherwise be passed over."""
        if not folder.is_dir():
            raise ContractError("no such folder of contracts", where=str(folder), mend="check --contracts")
        for path in folder.glob("*.yml"):
            mend = f"rename it to {path.stem}.yaml"
            raise ContractError("contract files end in .yaml", where=str(path), mend=mend)
        found = [path for path in folder.glob("*.yaml") if not path.name.startswith(("_", "."))]
        found += (folder / QUERIES).glob("*.sql")
        texts = {path.relative_to(folder).as_posix(): _text(path) for path in sorted(found)}
        if sum(map(len, texts.values())) > MAX_BYTES:
            what = f"more than {MAX_BYTES // 2**20} MiB of contracts"
            raise ContractError(what, where=str(folder), mend="keep other files elsewhere")
        return cls(texts, str(folder))

    @cached_property
    def sha256(self) -> str:
        """Digest of the files."""
        return hashlib.sha256(json.dumps(sorted(self.files.items())).encode()).hexdigest()

    def __hash__(self) -> int:
        """Hash the texts: overlays are keys of caches."""
        return hash((self.sha256, self.origin))

    def __eq__(self, other: object) -> bool:
        """Say whether two have the same texts from the same place."""
        return isinstance(other, Overlay) and (self.sha256, self.origin) == (other.sha256, other.origin)

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that it has or adds to, sorted."""
        return tuple(name.removesuffix(".yaml") for name in self.files if "/" not in name and name != METRICS)

    def over(self, other: "Overlay | None") -> "Overlay":
        """Return both; of a file that both have, this one's."""
        return self if other is None else Overlay({**other.files, **self.files}, self.origin)

    def has(self, other: "Overlay") -> bool:
        """Say whether all files of another are here, word by word."""
        return other.files.items() <= self.files.items()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ContractError(f"cannot be read ({error})", where=str(path), mend="check the path") from error
