"""Another order of rows within files."""

from dataclasses import dataclass

from ranklake.lake.migrations.steps.step import Names, Step


@dataclass(frozen=True, slots=True)
class Resort(Step):
    """Files sorted by other columns.

    Attributes
    ----------
    by, was
        Columns that files are sorted by after the step, and before it: no snapshot of a contract keeps them.
    """

    by: Names
    was: Names

    def sort_before(self, after: Names) -> Names:
        """Return the order of before."""
        del after
        return self.was

    @property
    def touched(self) -> frozenset[str]:
        """Nothing."""
        return frozenset()

    @property
    def text(self) -> str:
        """The step for people."""
        return f"sort by {', '.join(self.by)} in place of {', '.join(self.was)}"
