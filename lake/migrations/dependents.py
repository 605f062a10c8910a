"""What asks for columns that a migration renames, drops or converts: rollups, checks, metrics and roles."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ranklake.lake.contracts.load import load_contracts, load_metrics

if TYPE_CHECKING:
    from ranklake.lake.migrations.migration import Migration

_WORD: Final = re.compile(r"[a-z_][a-z0-9_]*")
_ROLLUPS: Final = Path(__file__).parent.parent / "rollups"


@dataclass(frozen=True, slots=True)
class Dependent:
    """Something that names a column of a migration's table.

    Attributes
    ----------
    kind, name
        ``rollup``, ``check`` or ``metric``; and which.
    column
        Under its name before the migration.
    breaks
        Whether it finds no such column afterwards, or numbers in another unit; false if it only sees a wider type.
    """

    kind: str
    name: str
    column: str
    breaks: bool


def dependents(one: "Migration") -> Iterator[Dependent]:
    """Yield what names the columns that a migration touches, by the words that it uses: perhaps more than does."""
    touched = {name: step.breaks_readers for step in one.steps for name in step.touched}
    for path in sorted(_ROLLUPS.glob("*.sql")):
        words = set(_WORD.findall(path.read_text(encoding="utf-8").lower()))
        if one.table in words:
            yield from (Dependent("rollup", path.stem, name, touched[name]) for name in sorted(touched.keys() & words))
    stored_in = _stored_in()
    for name, breaks in sorted(touched.items()):
        yield from (Dependent("metric", who, name, breaks) for who in stored_in.get(f"{one.table}.{name}", ()))
        for check in load_contracts()[one.table].all_checks():
            if name in check.columns:
                yield Dependent("check", check.id, name, breaks)


def _stored_in() -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for metric in load_metrics().values():
        found.setdefault(metric.stored_in, []).append(metric.name)
    return found
