"""What migrations made of the columns of a table, version by version, for people."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ranklake.lake.migrations.registry import load_migrations
from ranklake.lake.migrations.steps.replaced import Replaced
from ranklake.lake.migrations.steps.step import ColumnStep

if TYPE_CHECKING:
    from ranklake.lake.contracts.overlay import Overlay
    from ranklake.lake.migrations.steps.step import Step


@dataclass(frozen=True, slots=True)
class Change:
    """A step of a migration.

    Attributes
    ----------
    version
        The first that has it.
    is_of_added
        Whether that is a version of the columns that an overlay adds to a table of ours.
    columns
        Those that it is about, as they are called before and after it; none where it is about the table.
    what
        The step, in a clause.
    migration
        Its label.
    """

    version: int
    is_of_added: bool
    columns: tuple[str, ...]
    what: str
    migration: str

    @property
    def since(self) -> str:
        """The version, for people."""
        return f"{self.version} of added columns" if self.is_of_added else str(self.version)


def told(table: str, overlay: "Overlay | None" = None) -> tuple[Change, ...]:
    """Return the changes of a table, oldest first. Raises `MigrationError` where migrations cannot be read."""
    return tuple(
        Change(one.to_version, one.is_of_added, _columns(step), step.text, one.label)
        for one in load_migrations(overlay=overlay)
        if one.table == table
        for step in one.steps
    )


def _columns(step: "Step") -> tuple[str, ...]:
    if isinstance(step, Replaced):
        return (*step.sources, *step.came)
    if not isinstance(step, ColumnStep):
        return ()
    lead = step.lead(step.column) if step.touched else None
    return tuple(dict.fromkeys((step.column, lead.name if lead is not None else step.column)))
