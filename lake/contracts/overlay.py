"""Overlays: an operator's own contracts, metrics and rollups as texts, which travel where their folder does not.

    own/<table>.yaml            a table, or more columns and checks of a packaged one
    own/metrics.yaml            metrics
    own/rollups/<table>.sql     the query of a derived table
    own/migrations/<number>_<name>.yaml   how stored rows of a table follow its next version
    own/snapshots/<table>.v<N>.json       what an earlier version of a table was

A lake keeps the overlays that it was written under (`ranklake.lake.store.overlays`), a recording process writes its
own into its stream. So workers of a cluster, a node's agent and a lake whose operator removed the folder know what the
rows mean.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

from ranklake.file_formats import FormatError, read_yaml
from ranklake.lake.contracts.errors import ContractError

METRICS: Final = "metrics.yaml"
QUERIES: Final = "rollups"
MIGRATIONS: Final = "migrations"
SNAPSHOTS: Final = "snapshots"
_MORE: Final = (
    (QUERIES, "*.sql"),
    (MIGRATIONS, "*.yaml"),
    (SNAPSHOTS, "*.json"),
)
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
            raise ContractError("no such folder of contracts", where=str(folder), hint="check --contracts")
        for path in folder.glob("*.yml"):
            hint = f"rename it to {path.stem}.yaml"
            raise ContractError("contract files end in .yaml", where=str(path), hint=hint)
        paths = [path for path in folder.glob("*.yaml") if not path.name.startswith(("_", "."))]
        paths += [path for place, pattern in _MORE for path in (folder / place).glob(pattern)]
        texts = {path.relative_to(folder).as_posix(): _text(path) for path in sorted(paths)}
        if sum(map(len, texts.values())) > MAX_BYTES:
            message = f"more than {MAX_BYTES // 2**20} MiB of contracts"
            raise ContractError(message, where=str(folder), hint="keep other files elsewhere")
        return cls(texts, str(folder))

    @cached_property
    def sha256(self) -> str:
        """Digest of the files."""
        return hashlib.sha256(json.dumps(sorted(self.files.items())).encode()).hexdigest()

    def __hash__(self) -> int:
        """Hash the texts: overlays are keys of caches."""
        return hash((self.sha256, self.origin))

    def __eq__(self, other: object) -> bool:
        """Whether two have the same texts from the same place."""
        return isinstance(other, Overlay) and (self.sha256, self.origin) == (other.sha256, other.origin)

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that it has or adds to, sorted."""
        return tuple(name.removesuffix(".yaml") for name in self.files if "/" not in name and name != METRICS)

    @property
    def migrations(self) -> tuple[str, ...]:
        """Paths of migrations, sorted."""
        return tuple(sorted(name for name in self.files if name.startswith(f"{MIGRATIONS}/")))

    def leads(self, table: str, begin: int, end: int) -> bool:
        """Whether a migration leads from each version of a table to the next, as their files say."""
        spans = {_migration_versions(self.files[name]) for name in self.migrations}
        return all((table, version, version + 1) in spans for version in range(begin, end))

    def is_after(self, name: str, table: str, version: int) -> bool:
        """Whether a file is a migration that begins at a version of a table, or at a later one."""
        of_table, begin, _ = _migration_versions(self.files[name]) if name in self.migrations else ("", 0, 0)
        return of_table == table and isinstance(begin, int) and begin >= version

    def renamed_columns(self, table: str) -> dict[str, str]:
        """Return the names that columns of a table had before its migrations, and what each is called now."""
        now: dict[str, str] = {}
        for facts in sorted((_facts(self.files[name]) for name in self.migrations), key=_first_version):
            steps = facts.get("steps") if facts.get("table") == table else None
            for step in steps if isinstance(steps, list) else []:
                old, new = (step.get("rename"), step.get("to")) if isinstance(step, dict) else (None, None)
                if isinstance(old, str) and isinstance(new, str):
                    now = {name: new if called == old else called for name, called in now.items()} | {old: new}
        return {name: called for name, called in now.items() if name != called}

    def over(self, other: "Overlay | None") -> "Overlay":
        """Return both; of a file that both have, this one's."""
        return self if other is None else Overlay({**other.files, **self.files}, self.origin)

    def has(self, other: "Overlay") -> bool:
        """Whether this overlay has all files of another, word for word."""
        return other.files.items() <= self.files.items()


def _migration_versions(text: str) -> tuple[object, object, object]:
    """Return which table a migration is of, and its versions, unless it is none."""
    facts = _facts(text)
    return facts.get("table"), facts.get("from"), facts.get("to")


def _facts(text: str) -> dict[str, Any]:
    """Return what a migration's file says; nothing where it is none."""
    try:
        facts = read_yaml(text)
    except FormatError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _first_version(facts: Mapping[str, Any]) -> int:
    begin = facts.get("from")
    return begin if isinstance(begin, int) else 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ContractError(f"cannot be read ({error})", where=str(path), hint="check the path") from error
