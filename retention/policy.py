"""Retention policies: how long each class of data is kept, and why; a file is checked whole before it is used."""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.contracts.document import Document
from ranklake.lake.contracts.errors import ContractError
from ranklake.lake.contracts.schema import problems

PACKAGED: Final = Path(__file__).with_name("policies.yaml")
KEPT: Final[Mapping[str, str]] = {
    "system": "the books of what was ingested would no longer balance",
    "audit": "its chain of hashes would break",
}
"""Classes that cannot have a period, and why."""

_TEXT: Final = {"type": "string", "minLength": 1}
_POLICY: Final[Mapping[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["period_days", "owner", "reason", "basis"],
    "properties": {
        "period_days": {"type": ["integer", "null"], "minimum": 1},
        "owner": _TEXT,
        "reason": _TEXT,
        "basis": _TEXT,
    },
}


class PolicyError(RanklakeError):
    """A policy file that cannot be used: ``file:line: what; mend``."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One class's policy.

    Attributes
    ----------
    retention_class
        As contracts name it.
    period_days
        A partition goes once its last row is that old; None keeps it for ever.
    owner, reason, basis
        Who answers for the period; why not longer; on what grounds so long.
    """

    retention_class: str
    period_days: int | None
    owner: str
    reason: str
    basis: str

    def cutoff(self, as_of: date) -> date | None:
        """Return the date before which partitions go, None if none do.

        The last row of partition D may be as late as the end of D, so D goes when D + 1 + period has come.
        """
        if self.period_days is None:
            return None
        return date.fromordinal(max(date.min.toordinal(), as_of.toordinal() - self.period_days))  # none is before it


@dataclass(frozen=True, slots=True)
class Policies:
    """All policies of a file.

    Attributes
    ----------
    sha256
        Of the file's bytes.
    """

    by_class: Mapping[str, Policy]
    sha256: str


def load_policies(classes: Collection[str], path: Path | None = None) -> Policies:
    """Read the policy file: the packaged one, unless a path is given, which replaces it whole.

    Parameters
    ----------
    classes
        The retention classes that contracts use: each must have a policy, and no other may, since a misspelt name would
        keep data that should go.

    Raises
    ------
    PolicyError
        The file cannot be read or is not a policy file; a class is missing or unknown.
    """
    path = path or PACKAGED
    try:
        return _read(Document(path), classes)
    except ContractError as error:  # the documents of contracts and of policies fail alike
        raise PolicyError(error.what, where=error.where, mend=error.mend) from error


def _read(document: Document, classes: Collection[str]) -> Policies:
    shape: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "required": ["version", "classes"],
        "properties": {"version": {"type": "integer", "enum": [1]}, "classes": {"type": "object"}},
    }
    for problem in problems(document.content, shape):
        document.fail(problem.at, problem.what, problem.mend)
    found: dict[str, Policy] = {}
    for name, facts in document.content["classes"].items():
        at = ("classes", name)
        if name not in classes:
            document.fail(at, f"no contract uses the retention class {name!r}", did_you_mean(str(name), classes))
        for problem in problems(facts, _POLICY, at):
            document.fail(problem.at, problem.what, problem.mend)
        if name in KEPT and facts["period_days"] is not None:
            document.fail((*at, "period_days"), f"class {name!r} cannot have a period: {KEPT[name]}", "write null")
        found[name] = Policy(name, **facts)
    for name in sorted(set(classes) - set(found)):
        document.fail(("classes",), f"no policy for the retention class {name!r}", f"add {name}: …")
    return Policies(found, hashlib.sha256(document.path.read_bytes()).hexdigest())
