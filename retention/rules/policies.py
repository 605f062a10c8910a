"""Policies: all rules and demands that apply to a lake."""

from dataclasses import dataclass
from datetime import date
from pathlib import Path

from ranklake.retention.rules.demand import Demand
from ranklake.retention.rules.model import Rule


@dataclass(frozen=True, slots=True)
class Policies:
    """All rules that apply to a lake.

    Attributes
    ----------
    rules
        In the order of their files.
    sha256
        Of the file's bytes; of a folder, of the names and bytes of its files.
    place
        The file or folder.
    grace_days
        How many days what plans take is kept, so that they can be cancelled; 0 for none.
    demands
        What the places of tables must be.
    """

    rules: tuple[Rule, ...]
    sha256: str
    place: Path
    grace_days: int = 0
    demands: tuple[Demand, ...] = ()

    def rule(self, name: str) -> Rule:
        """Return a rule by its name."""
        return next(one for one in self.rules if one.name == name)

    def overdue(self, today: date) -> tuple[Rule, ...]:
        """Return the rules whose review date has passed."""
        return tuple(one for one in self.rules if one.review is not None and one.review < today)
