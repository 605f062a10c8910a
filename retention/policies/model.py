"""A rule: what it is about, what is to happen to that and when, and who answers for it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ranklake.masking.masks import Mask, default_mask
from ranklake.redaction.redact import has_credential
from ranklake.segments.storage_options import uri_fault

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract


ROW_KEYS: Final = ("run", "tag", "team", "environment", "metric", "severity")
"""What rows of one partition differ in."""
TABLE_KEYS: Final = ("table", "kind", "class")
KEYS: Final = (*ROW_KEYS, *TABLE_KEYS)
"""What a rule selects by, the most specific first: `ranklake.retention.policies.order` goes by it."""
RUN_KEYS: Final = frozenset({"run", "tag", "team", "environment"})
SEVERITIES: Final = ("trace", "debug", "info", "warning", "error", "fatal")

KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "scalars": ("scalars", "distributions"),
    "artifacts": ("artifacts", "datasets"),
    "logs": ("logs", "events"),
    "samples": ("gpu_samples", "host_samples"),
    "traces": ("steps", "spans", "inferences"),
}
"""Kinds of data, and the tables that hold them; further: ``rollups``, ``books`` and ``other``, see `kind_of`."""
ALL_KINDS: Final = (*KINDS, "rollups", "books", "other")

KEPT: Final[Mapping[str, str]] = {
    "system": "the books of what was ingested would no longer balance",
    "audit": "its chain of hashes would break",
}
"""Classes that cannot have a period, and why."""

Facts = Mapping[str, frozenset[str]]
"""What is known of some rows, by key; what is unknown, or does not apply, is absent and matches nothing."""

_S3: Final = ("s3://", "s3a://")
_GLOB: Final = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands: a file and a line, from 1; line 0 for what stands in no file, and can be looked up so."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else str(self.file)

    @property
    def short(self) -> str:
        """The same, of a file without its folder."""
        return f"{self.file.name}:{self.line}" if self.line else str(self.file)


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a rule has rows archived.

    Attributes
    ----------
    to
        URI, or absolute path of a folder.
    storage_class, tag
        S3's class, and a tag ``name=value``, of the copies; None for the bucket's own.
    free
        Whether rows are brought back without a proposal.
    """

    to: str
    storage_class: str | None = None
    tag: str | None = None
    free: bool = False


def place_fault(uri: str) -> str:
    """Return why a place cannot be one of archives, by its name; empty if it can."""
    if has_credential(uri):
        return "a credential stands in it"
    is_whole = "://" in uri or uri.startswith(("/", "file:"))
    return uri_fault(uri)[0] if is_whole else "it is neither a URI nor an absolute path"


def has_classes(uri: str) -> bool:
    """Return whether objects of a place can lie in storage classes."""
    return uri.startswith(_S3)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes
    ----------
    where
        What it is about: for each key of `KEYS` texts or globs, one of which must match; all keys must. Beside them
        ``column``, the columns that a mask is for.
    owner, reason, basis
        Who answers for it; why not longer (or shorter); on what legal grounds.
    at
        Where it stands.
    deletes, delete_after_days
        Whether it says when rows go; and so many days after their date, None for never by time.
    minimum_days, maximum_days
        Rows are kept at least that long, and at most.
    budget_bytes
        Most bytes that what it is about should take. It deletes nothing; simulation and plans tell where it is passed.
    growth_bytes_per_day
        Most bytes a day by which that should grow; likewise told by ``ranklake retain cost``.
    destination
        Where rows are archived that it has archived.
    waiting
        What else it asks for, by action (``mask``, ``downsample``, ``archive``), and from which age in days on.
    interval_s
        Length of the intervals of ``downsample``.
    review
        Until when somebody must have looked at it again; None if it does not say.
    region
        Where it applies; empty: everywhere.
    everything, tier
        Whether it may take everything, and how many must approve that.
    """

    name: str
    where: Mapping[str, tuple[str, ...]]
    owner: str
    reason: str
    basis: str
    at: Place
    deletes: bool = False
    delete_after_days: int | None = None
    minimum_days: int | None = None
    maximum_days: int | None = None
    budget_bytes: int | None = None
    growth_bytes_per_day: int | None = None
    destination: Destination | None = None
    waiting: Mapping[str, int] = field(default_factory=dict)
    interval_s: int | None = None
    review: date | None = None
    region: str = ""
    everything: bool = False
    tier: int = 1

    def matches(self, facts: Facts) -> bool:
        """Return whether it is about rows with these facts."""
        return all(
            any(fnmatchcase(text, pattern) for text in facts.get(key, ()) for pattern in patterns)
            for key, patterns in self.where.items()
            if key != "column"
        )

    @property
    def row_keys(self) -> tuple[str, ...]:
        """The keys by which it tells rows of a partition apart."""
        return tuple(key for key in ROW_KEYS if key in self.where)

    def may_match(self, contract: "Contract") -> bool:
        """Return whether it can be about rows of a table."""
        facts = table_facts(contract)
        keys = row_keys_of(contract)
        tables = {key: patterns for key, patterns in self.where.items() if key in TABLE_KEYS}
        return all(key in keys for key in self.row_keys) and all(
            any(fnmatchcase(text, pattern) for text in facts[key] for pattern in patterns)
            for key, patterns in tables.items()
        )


def is_glob(text: str) -> bool:
    """Return whether a text stands for several."""
    return _GLOB.search(text) is not None


def literal_beginning(text: str) -> str:
    """Return what all texts begin with that a glob stands for: `train/` for `train/*`."""
    return _GLOB.split(text, maxsplit=1)[0]


def kind_of(contract: "Contract") -> str:
    """Return the kind of data that a table holds."""
    named = next((kind for kind, tables in KINDS.items() if contract.table in tables), None)
    return named or {"derived": "rollups", "system": "books"}.get(contract.kind, "other")


def table_facts(contract: "Contract") -> dict[str, frozenset[str]]:
    """Return what is known of all rows of a table."""
    return {
        "table": frozenset({contract.table}),
        "kind": frozenset({kind_of(contract)}),
        "class": frozenset({contract.retention}),
    }


def row_keys_of(contract: "Contract") -> frozenset[str]:
    """Return the keys by which rows of a table can be distinguished.

    Only rows that ranks recorded: a rollup's rows come again when it is computed again.
    """
    if contract.kind != "fact" or not contract.envelope:
        return frozenset()
    severity = {"severity"} & ({"severity"} if {"severity", "severity_number"} & set(contract.names) else set())
    return RUN_KEYS | severity | ({"metric"} & set(contract.names))


Shown = Mapping[str, Mask]
"""The masks of columns, by name."""


def maskable(contract: "Contract") -> Shown:
    """Return the columns of a table that may be masked where they are stored, with their masks.

    Classified columns of what ranks recorded: a derived table is computed again, and statistics in the log hold values
    of operational columns. What tells rows apart or sorts them stays.
    """
    if contract.kind != "fact" or not contract.envelope:
        return {}
    fixed = {*contract.grain, *contract.sort, *contract.partition, "run", "ts"}
    masks = {
        column.name: default_mask(column.mask, column.class_, column.type)
        for column in contract.columns
        if column.class_ != "operational" and column.name not in fixed
    }
    return {name: mask for name, mask in masks.items() if mask.kind != "nullify" or not contract.column(name).required}


SECTION: Final = "places"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What places of tables must be.

    Attributes
    ----------
    where
        Which tables: by ``table``, ``kind`` and ``class`` texts or globs, one of which must match; all keys must.
    encrypted
        Whether their places must be encrypted.
    keys, regions
        By one of these keys, in one of these regions, as the store names them; none: by any, anywhere.
    owner, reason
        Who answers for it; why.
    at
        Where it stands.
    """

    name: str
    where: Mapping[str, tuple[str, ...]]
    encrypted: bool
    keys: tuple[str, ...]
    regions: tuple[str, ...]
    owner: str
    reason: str
    at: Place

    def is_about(self, contract: "Contract") -> bool:
        """Return whether it is about a table."""
        facts = table_facts(contract)
        return all(
            any(fnmatchcase(text, pattern) for text in facts[key] for pattern in patterns)
            for key, patterns in self.where.items()
        )


def is_one_of(key: str, wanted: Sequence[str]) -> bool | None:
    """Return whether a key is wanted, by its name or as the key id of an ARN; None where an alias stands."""
    for pattern in wanted:
        short, long = sorted((key, pattern), key=len)
        if key == pattern or (":" not in short and "/" not in short and long.endswith(f":key/{short}")):
            return True
    return None if any("alias/" in one for one in (key, *wanted)) else False
