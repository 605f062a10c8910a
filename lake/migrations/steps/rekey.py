"""Another key."""

from collections.abc import Mapping
from dataclasses import dataclass

from ranklake.lake.migrations.steps.step import Names, Shape, Shapes, Step, there


@dataclass(frozen=True, slots=True)
class Rekey(Step):
    """Another key, which each stored row must have alone; where two have the same, the migration stops.

    Attributes
    ----------
    key
        Columns, under their names at this step.
    """

    key: Names

    @property
    def keeps_files(self) -> bool:
        """A key is in no file."""
        return True

    @property
    def keeps_files_back(self) -> bool:
        """Likewise."""
        return True

    @property
    def rekeys(self) -> bool:
        """It does."""
        return True

    def shapes(self, before: Shapes, after: Mapping[str, Shape]) -> Shapes:
        """Look whether the columns are there."""
        del after
        for name in self.key:
            there(self, name, before)
        return before

    def grain(self, before: Names) -> Names:
        """Return the key."""
        del before
        return self.key

    @property
    def touched(self) -> frozenset[str]:
        """Nothing."""
        return frozenset()

    @property
    def text(self) -> str:
        """The step for people."""
        return f"have one row per {', '.join(self.key)}"
