"""A rule of a policy: which rows it selects, what happens to them and when, and who owns the rule."""

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
"""Selectors by which rows of one partition can differ."""
TABLE_KEYS: Final = ("table", "kind", "class")
KEYS: Final = (*ROW_KEYS, *TABLE_KEYS)
"""All selectors, the most specific first. `ranklake.retention.policies.order` uses this order."""
RUN_KEYS: Final = frozenset({"run", "tag", "team", "environment"})
SEVERITIES: Final = ("trace", "debug", "info", "warning", "error", "fatal")

KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "scalars": ("scalars", "distributions"),
    "artifacts": ("artifacts", "datasets"),
    "logs": ("logs", "events"),
    "samples": ("gpu_samples", "host_samples"),
    "traces": ("steps", "spans", "inferences"),
}
"""Kinds of data and their tables. All other tables are ``rollups``, ``books`` or ``other``, see `kind_of`."""
ALL_KINDS: Final = (*KINDS, "rollups", "books", "other")

KEPT: Final[Mapping[str, str]] = {
    "system": "the books of what was ingested would no longer balance",
    "audit": "its chain of hashes would break",
}
"""Retention classes that cannot have a period, with the reason."""

Facts = Mapping[str, frozenset[str]]
"""Values of rows by selector. An absent selector is unknown or does not apply, and matches no pattern."""

_S3: Final = ("s3://", "s3a://")
_GLOB: Final = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Place:
    """A file and a line, counted from 1. With line 0, `file` is a command that shows the source instead."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else str(self.file)

    @property
    def short(self) -> str:
        """The place without the file's folder."""
        return f"{self.file.name}:{self.line}" if self.line else str(self.file)


@dataclass(frozen=True, slots=True)
class Destination:
    """The place where a rule archives rows, and how.

    Attributes
    ----------
    to
        URI, or absolute path of a folder.
    storage_class, tag
        S3 storage class of the copies and their tag ``name=value``; None for the bucket's defaults.
    free
        Whether archived rows can be brought back without a proposal.
    """

    to: str
    storage_class: str | None = None
    tag: str | None = None
    free: bool = False


def place_fault(uri: str) -> str:
    """Return why a URI or path cannot be a place for archives; empty if it can."""
    if has_credential(uri):
        return "a credential stands in it"
    is_absolute = "://" in uri or uri.startswith(("/", "file:"))
    return uri_fault(uri)[0] if is_absolute else "it is neither a URI nor an absolute path"


def has_classes(uri: str) -> bool:
    """Return whether objects of a place can have a storage class."""
    return uri.startswith(_S3)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of a policy file.

    Attributes
    ----------
    where
        Selectors: texts or globs by key of `KEYS`. A row is selected if each key has a text that matches. The key
        ``column`` selects the columns to mask.
    owner, reason, basis
        Who owns the rule; why rows are kept that long; the legal basis.
    at
        File and line of the rule.
    deletes, delete_after_days
        Whether the rule sets a period, and how many days after their date rows are deleted; None for never.
    minimum_days, maximum_days
        Bounds of the time for which rows are kept.
    budget_bytes
        Intended size limit of the selected tables. Simulations and plans report an excess; nothing is deleted for it.
    growth_bytes_per_day
        Intended limit of the daily growth of the selected tables. ``ranklake retain cost`` reports an excess.
    destination
        Where the rule archives rows; None if it does not.
    action_days
        Age in days from which rows are masked, downsampled or archived, by ``mask``, ``downsample`` and ``archive``.
    interval_s
        Length of the intervals of ``downsample``.
    review
        Date until which the rule has to be reviewed; None if it has none.
    region
        Region in which the rule applies; empty for all regions.
    everything, tier
        Whether the rule may delete all rows of all tables, and how many approvers a plan of it needs.
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
    action_days: Mapping[str, int] = field(default_factory=dict)
    interval_s: int | None = None
    review: date | None = None
    region: str = ""
    everything: bool = False
    tier: int = 1

    def matches(self, facts: Facts) -> bool:
        """Return whether the rule selects rows with these facts."""
        return all(
            any(fnmatchcase(text, pattern) for text in facts.get(key, ()) for pattern in patterns)
            for key, patterns in self.where.items()
            if key != "column"
        )

    @property
    def row_keys(self) -> tuple[str, ...]:
        """The rule's selectors by which rows of one partition can differ."""
        return tuple(key for key in ROW_KEYS if key in self.where)

    def may_match(self, contract: "Contract") -> bool:
        """Return whether the rule can select rows of a table."""
        facts = table_facts(contract)
        keys = row_keys_of(contract)
        tables = {key: patterns for key, patterns in self.where.items() if key in TABLE_KEYS}
        return all(key in keys for key in self.row_keys) and all(
            any(fnmatchcase(text, pattern) for text in facts[key] for pattern in patterns)
            for key, patterns in tables.items()
        )


def is_glob(text: str) -> bool:
    """Return whether a text has wildcards."""
    return _GLOB.search(text) is not None


def literal_beginning(text: str) -> str:
    """Return the text before the first wildcard: `train/` for `train/*`."""
    return _GLOB.split(text, maxsplit=1)[0]


def kind_of(contract: "Contract") -> str:
    """Return the kind of data in a table: one of `ALL_KINDS`."""
    named = next((kind for kind, tables in KINDS.items() if contract.table in tables), None)
    return named or {"derived": "rollups", "system": "books"}.get(contract.kind, "other")


def table_facts(contract: "Contract") -> dict[str, frozenset[str]]:
    """Return the facts that are the same for all rows of a table."""
    return {
        "table": frozenset({contract.table}),
        "kind": frozenset({kind_of(contract)}),
        "class": frozenset({contract.retention}),
    }


def row_keys_of(contract: "Contract") -> frozenset[str]:
    """Return the selectors by which rows of a table can differ.

    Empty for tables that ranks do not record. Single rows of a rollup cannot be removed for good, since computing the
    rollup again restores them.
    """
    if contract.kind != "fact" or not contract.envelope:
        return frozenset()
    severity = {"severity"} & ({"severity"} if {"severity", "severity_number"} & set(contract.names) else set())
    return RUN_KEYS | severity | ({"metric"} & set(contract.names))


ColumnMasks = Mapping[str, Mask]
"""Masks by column name."""


def maskable(contract: "Contract") -> ColumnMasks:
    """Return the columns of a table whose stored values can be masked, with their masks.

    These are the classified columns of recorded tables that are no part of grain, sort order or partitioning. Derived
    tables are excluded because they are computed again, and operational columns because the Delta log has their values
    in its statistics.
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
    """Requirements for the buckets that store some tables.

    Attributes
    ----------
    where
        Selectors of tables: texts or globs by ``table``, ``kind`` and ``class``. Each key must have one that matches.
    encrypted
        Whether objects must be encrypted.
    keys, regions
        Accepted encryption keys and regions, as the store names them; empty for any.
    owner, reason
        Who owns the demand, and why it exists.
    at
        File and line of the demand.
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


def matches_key(key: str, accepted: Sequence[str]) -> bool | None:
    """Return whether an encryption key is among the accepted ones; None if an alias makes that unknown.

    A bare key id equals an ARN that ends in it.
    """
    for name in accepted:
        short, long = sorted((key, name), key=len)
        if key == name or (":" not in short and "/" not in short and long.endswith(f":key/{short}")):
            return True
    return None if any("alias/" in name for name in (key, *accepted)) else False
