"""Overlays: the files of an operator's own contracts, metrics, rollups and migrations.

    own/<table>.yaml            a table, or columns and checks added to a packaged table
    own/metrics.yaml            metrics
    own/rollups/<table>.sql     the query of a derived table
    own/migrations/<number>_<name>.yaml   a migration of a table from one version to the next
    own/snapshots/<table>.v<N>.json       an earlier version of a table's contract

A lake stores the overlays under which its rows were written (`ranklake.lake.store.overlays`). A recording process
stores its overlay in its stream. So the rows stay readable for cluster workers, node agents, and after an operator
removed the folder.
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
_SUBFOLDERS: Final = (
    (QUERIES, "*.sql"),
    (MIGRATIONS, "*.yaml"),
    (SNAPSHOTS, "*.json"),
)
MAX_BYTES: Final = 8 * 2**20
"""Maximum size of all files of an overlay together. More than a thousand wide tables fit."""


@dataclass(frozen=True)
class Overlay:
    """The files of an overlay.

    Attributes
    ----------
    files
        Texts of the files by their paths within the folder.
    origin
        The folder that was read, for error messages.
    """

    files: Mapping[str, str]
    origin: str

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read an overlay's folder.

        Raises `ContractError` if the folder does not exist or is too large, if a file cannot be read, or for a `.yml`
        file, which would otherwise be ignored.
        """
        if not folder.is_dir():
            raise ContractError("no such folder of contracts", where=str(folder), hint="check --contracts")
        for path in folder.glob("*.yml"):
            hint = f"rename it to {path.stem}.yaml"
            raise ContractError("contract files end in .yaml", where=str(path), hint=hint)
        paths = [path for path in folder.glob("*.yaml") if not path.name.startswith(("_", "."))]
        paths += [path for subfolder, pattern in _SUBFOLDERS for path in (folder / subfolder).glob(pattern)]
        texts = {path.relative_to(folder).as_posix(): _text(path) for path in sorted(paths)}
        if sum(map(len, texts.values())) > MAX_BYTES:
            message = f"more than {MAX_BYTES // 2**20} MiB of contracts"
            raise ContractError(message, where=str(folder), hint="keep other files elsewhere")
        return cls(texts, str(folder))

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the files' paths and texts, in hexadecimal."""
        return hashlib.sha256(json.dumps(sorted(self.files.items())).encode()).hexdigest()

    def __hash__(self) -> int:
        """Hash texts and origin: overlays are cache keys."""
        return hash((self.sha256, self.origin))

    def __eq__(self, other: object) -> bool:
        """Whether both overlays have the same texts and the same origin."""
        return isinstance(other, Overlay) and (self.sha256, self.origin) == (other.sha256, other.origin)

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that the overlay defines or extends, sorted."""
        return tuple(name.removesuffix(".yaml") for name in self.files if "/" not in name and name != METRICS)

    @property
    def migrations(self) -> tuple[str, ...]:
        """Paths of the migrations within the folder, sorted."""
        return tuple(sorted(name for name in self.files if name.startswith(f"{MIGRATIONS}/")))

    def has_migrations(self, table: str, begin: int, end: int) -> bool:
        """Whether the overlay has a migration for each step of a table from version ``begin`` to version ``end``."""
        spans = {_migration_versions(self.files[name]) for name in self.migrations}
        return all((table, version, version + 1) in spans for version in range(begin, end))

    def is_migration_from(self, name: str, table: str, version: int) -> bool:
        """Whether the file ``name`` is a migration of a table from this version or a later one."""
        of_table, begin, _ = _migration_versions(self.files[name]) if name in self.migrations else ("", 0, 0)
        return of_table == table and isinstance(begin, int) and begin >= version

    def renamed_columns(self, table: str) -> dict[str, str]:
        """Return a mapping from former to current names of the columns that a table's migrations renamed."""
        current: dict[str, str] = {}
        for facts in sorted((_facts(self.files[name]) for name in self.migrations), key=_first_version):
            steps = facts.get("steps") if facts.get("table") == table else None
            for step in steps if isinstance(steps, list) else []:
                old, new = (step.get("rename"), step.get("to")) if isinstance(step, dict) else (None, None)
                if isinstance(old, str) and isinstance(new, str):
                    current = {former: new if name == old else name for former, name in current.items()} | {old: new}
        return {former: name for former, name in current.items() if former != name}

    def over(self, other: "Overlay | None") -> "Overlay":
        """Return an overlay with the files of both. For a path in both, this overlay's file is used."""
        return self if other is None else Overlay({**other.files, **self.files}, self.origin)

    def contains(self, other: "Overlay") -> bool:
        """Whether this overlay contains all files of another, with the same texts."""
        return other.files.items() <= self.files.items()


def _migration_versions(text: str) -> tuple[object, object, object]:
    """Return table, first and last version of a migration file; None for each value that the file lacks."""
    facts = _facts(text)
    return facts.get("table"), facts.get("from"), facts.get("to")


def _facts(text: str) -> dict[str, Any]:
    """Return the content of a migration file; an empty dictionary if it is no YAML mapping."""
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
