"""What is wrong with policies: a code, a place, a sentence and what to do about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ranklake.retention.policies.model import Place

ERRORS: Final[Mapping[str, str]] = {
    "RP001": "the file cannot be read",
    "RP002": "the file breaks its schema",
    "RP003": "nobody answers for a rule, or on no grounds",
    "RP005": "a name that nothing has",
    "RP006": "a rule says nothing",
    "RP007": "a period for the books",
    "RP008": "data without a rule",
    "RP009": "a rule takes everything",
    "RP010": "the bounds of a rule contradict each other",
    "RP011": "the bounds of two rules contradict each other",
    "RP012": "two rules have one name",
    "RP013": "columns where there is no mask, or a mask without columns",
    "RP014": "an action comes after the rows are gone",
    "RP016": "a rule is about nothing",
    "RP022": "a rule of a region where none is configured",
    "RP024": "a budget of some rows of a table",
    "RP025": "what cannot be downsampled",
    "RP026": "an archive that cannot be",
    "RP028": "a demand on places that asks nothing, or is about nothing",
}
"""Policies with one of these are not used."""
WARNINGS: Final[Mapping[str, str]] = {
    "RP015": "two rules select the same",
    "RP017": "a rule never decides",
    "RP018": "a review is overdue",
    "RP019": "a rule has no review date",
    "RP021": "a rule keeps longer than what it goes by is known",
    "RP023": "a period of more than a hundred years",
    "RP027": "values are masked after they were archived",
    "RP029": "no place can meet two demands at once",
}
"""Policies with these are used; somebody should look."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: of `ERRORS` or `WARNINGS`, where, what exactly, and the remedy."""

    code: str
    at: Place
    message: str
    hint: str

    @property
    def error(self) -> bool:
        """Whether the policies cannot be used so."""
        return self.code in ERRORS

    def __str__(self) -> str:
        hint = f"; {self.hint}" if self.hint else ""
        return f"{self.at}: {self.code} {'error' if self.error else 'warning'}: {self.message}{hint}"

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "code": self.code,
            "level": "error" if self.error else "warning",
            "file": str(self.at.file),
            "line": self.at.line,
            "what": self.message,
            "remedy": self.hint,
        }
