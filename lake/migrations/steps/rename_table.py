"""Another name for the table itself, in queries: its folder stays, and with it all that is stored and recorded."""

from dataclasses import dataclass
from datetime import date

from ranklake.lake.migrations.steps.step import Names, Step


@dataclass(frozen=True, slots=True)
class RenameTable(Step):
    """Another name for the table; queries may use the earlier one until a day.

    Attributes
    ----------
    earlier, to
        What queries call it before the step, and after it.
    until
        Last day on which they may use the earlier name.
    """

    earlier: str
    to: str
    until: date | None = None

    @property
    def keeps_files(self) -> bool:
        """No row changes."""
        return True

    @property
    def keeps_files_back(self) -> bool:
        """No row changes."""
        return True

    @property
    def touched(self) -> frozenset[str]:
        """No column."""
        return frozenset()

    @property
    def breaks_readers(self) -> bool:
        """Readers of columns see none of it."""
        return False

    def unknown_before(self, after: Names) -> Names:
        """Return what is unknown already."""
        return after

    @property
    def text(self) -> str:
        """The step for people."""
        return f"call table {self.earlier} {self.to}"
