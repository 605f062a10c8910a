"""The packaged contracts as a later release would have them, for as long as a test lasts."""

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from ranklake.lake.contracts import freeze, load
from ranklake.lake.contracts.load import contract
from ranklake.lake.migrations import registry
from ranklake.lake.migrations.draft import draft


class ChangedContracts:
    """A copy of the packaged contracts that may be edited; what asks for a contract afterwards gets the edited one."""

    def __init__(self, folder: Path, monkeypatch: Any) -> None:
        self._packaged = load.PACKAGED
        self._monkeypatch = monkeypatch
        self._folder = folder
        shutil.copytree(self._packaged, folder)
        self._snapshots, self._migrations = folder.parent / "snapshots", folder.parent / "migrations"
        self._migrations.mkdir()
        monkeypatch.setattr(freeze, "SNAPSHOTS", self._snapshots)
        monkeypatch.setattr(registry, "FOLDER", self._migrations)
        self.later()

    def edit(self, table: str, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the document of a table."""
        path = self._folder / f"{table}.yaml"
        facts = yaml.safe_load(path.read_text(encoding="utf-8"))
        change(facts)
        path.write_text(yaml.safe_dump(facts, sort_keys=False), encoding="utf-8")
        _forget()

    def new(self, table: str, base: str) -> None:
        """Add a table that is like another."""
        text = (self._folder / f"{base}.yaml").read_text(encoding="utf-8")
        path = self._folder / f"{table}.yaml"
        path.write_text(text.replace(f"table: {base}\n", f"table: {table}\n", 1), encoding="utf-8")
        _forget()

    def add(self, table: str, **column: Any) -> None:
        """Add a column, and raise the version of the table."""
        freeze.keep_snapshot(contract(table), self._snapshots)

        def change(facts: dict[str, Any]) -> None:
            facts["version"] += 1
            shared = {"class": "operational", "doc": "Of a later version.", "since": facts["version"]}
            facts["columns"].append({**shared, **column})

        self.edit(table, change)

    def migrate(
        self, table: str, change: Callable[[dict[str, Any]], None], steps: list[Any] | None = None, **step: Any
    ) -> Path:
        """Change a table's document under a new version, and draft its migration; return the migration's file.

        `steps` take the place of those that were drafted; `step` is added to the drafted step about a unit.
        """
        freeze.keep_snapshot(contract(table), self._snapshots)
        self.edit(table, lambda facts: (change(facts), facts.update(version=facts["version"] + 1)))
        path = draft(table, f"{table}_{contract(table).version}")
        if step or steps is not None:
            facts = yaml.safe_load(path.read_text(encoding="utf-8"))
            facts["steps"] = facts["steps"] if steps is None else steps
            for one in facts["steps"]:
                if "convert" in one:
                    one.update(step)
            path.write_text(yaml.safe_dump(facts, sort_keys=False), encoding="utf-8")
        return path

    def close(self) -> None:
        """End all of it."""
        self.earlier()

    def earlier(self) -> None:
        """Go back to the contracts of today."""
        self._monkeypatch.setattr(load, "PACKAGED", self._packaged)
        _forget()

    def later(self) -> None:
        """Go on with the edited ones."""
        self._monkeypatch.setattr(load, "PACKAGED", self._folder)
        _forget()


def _forget() -> None:
    for known in vars(load).values():
        if hasattr(known, "cache_clear"):
            known.cache_clear()


@pytest.fixture
def changed(tmp_path, monkeypatch):
    """Return contracts and migrations that a test may edit; those of today are back when it ends."""
    with closing(ChangedContracts(tmp_path / "contracts", monkeypatch)) as contracts:
        yield contracts


def column(facts: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a column of a table's document."""
    found: dict[str, Any] = next(one for one in facts["columns"] if one["name"] == name)
    return found


def rename(facts: dict[str, Any], old: str = "tokens", new: str = "tokens_seen") -> None:
    """Give a column of ``steps`` another name, wherever the document has it."""
    column(facts, old).update(name=new)
    for check in facts.get("checks", []):
        check["columns"] = [new if name == old else name for name in check.get("columns", [])]


def convert(facts: dict[str, Any]) -> None:
    """Have the step's time in milliseconds."""
    rename(facts, "step_time_s", "step_time_ms")
    column(facts, "step_time_ms").update(unit="ms")


def retype(facts: dict[str, Any]) -> None:
    """Widen the loss."""
    column(facts, "loss").update(type="float64")
