"""Schema of policy files and policy tests. `ranklake retain new` writes it as JSON Schema for editors."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter

Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[tuple[Text, ...], Field(min_length=1)]
Patterns = Text | Texts
"""One text or several, with wildcards ``*`` and ``?``. At least one must match."""
Positive = Annotated[int, Field(ge=1)]
Region = Annotated[str, StringConstraints(pattern="^[a-z0-9][a-z0-9-]{0,62}$")]
Interval = Annotated[str, StringConstraints(pattern="^[1-9][0-9]*(s|m|h|d)$")]
StorageClass = Annotated[str, StringConstraints(pattern="^[A-Z][A-Z0-9_]*$")]
Tag = Annotated[str, StringConstraints(pattern="^[A-Za-z0-9 _.:/+@-]+=[A-Za-z0-9 _.:/+@-]*$")]


@dataclass(frozen=True, kw_only=True)
class TablesSelection:
    """Selects tables; {} selects all. Every key must match, and one text of a list is enough. * and ? are wildcards."""

    table: Patterns = ()
    kind: Annotated[
        Patterns,
        Field(description="Kind of data: scalars, artifacts, logs, samples, traces, rollups, books, other."),
    ] = ()
    class_: Annotated[Patterns, Field(alias="class", description="Retention class of the table's contract.")] = ()

    def patterns(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield each key that has texts, with these texts."""
        for key, texts in vars(self).items():
            if texts:
                yield key.rstrip("_"), (texts,) if isinstance(texts, str) else texts


@dataclass(frozen=True, kw_only=True)
class RowsSelection(TablesSelection):
    """Selects rows. Every key must match, and one text of a list is enough. * and ? are wildcards."""

    run: Patterns = ()
    tag: Annotated[Patterns, Field(description="Label of the run: name=value, a name, or a value.")] = ()
    team: Annotated[Patterns, Field(description="Team of the run.")] = ()
    environment: Annotated[Patterns, Field(description="Value of the run's label 'environment'.")] = ()
    metric: Annotated[Patterns, Field(description="Metric, such as train/*.")] = ()
    severity: Annotated[
        Patterns,
        Field(description="Severity of logs and events: trace, debug, info, warning, error, fatal."),
    ] = ()
    column: Annotated[Patterns, Field(description="Columns to mask, in a rule with mask_after_days.")] = ()


@dataclass(frozen=True, kw_only=True)
class Downsampling:
    """Replaces rows of that age by aggregates and histograms of intervals. A day must be a multiple of the interval."""

    after_days: Positive
    interval: Interval


@dataclass(frozen=True, kw_only=True)
class Archiving:
    """Moves rows of that age to another place. They can be brought back from there for some days."""

    after_days: Positive
    to: Annotated[Text, Field(description="URI, or absolute path of a folder, for archives of this lake alone.")]
    storage_class: Annotated[
        StorageClass | None,
        Field(description="S3 storage class of verified copies, such as GLACIER; default: the bucket's."),
    ] = None
    tag: Annotated[
        Tag | None, Field(description="Tag name=value of the objects on S3, for a lifecycle rule of the bucket.")
    ] = None
    rehydrate: Annotated[
        Literal["approved", "free"], Field(description="Whether bringing rows back needs an approved proposal.")
    ] = "approved"


@dataclass(frozen=True, kw_only=True)
class Answerable:
    """Owner, legal basis, review date and region of a rule. Values at the top of a file are defaults for its rules."""

    owner: Annotated[Text | None, Field(description="Who owns the rule.")] = None
    basis: Annotated[Text | None, Field(description="Legal basis.")] = None
    review: Annotated[date | None, Field(description="Date until which it has to be reviewed.")] = None
    region: Annotated[
        Region | None, Field(description="Region in which it applies, as in [retention] region; default: everywhere.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class RuleItem(Answerable):
    """A rule."""

    where: RowsSelection
    reason: Annotated[Text, Field(description="Why rows are kept that long; shown in plans.")]
    delete_after_days: Annotated[
        Positive | None, Field(description="Rows of that age are deleted; null: never by age.")
    ] = None
    minimum_days: Annotated[
        Positive | None, Field(description="Rows are kept at least that long, before any other rule.")
    ] = None
    maximum_days: Annotated[
        Positive | None, Field(description="Rows are kept at most that long, unless a minimum is longer.")
    ] = None
    mask_after_days: Annotated[
        Positive | None, Field(description="Columns of where.column are masked in rows of that age.")
    ] = None
    downsample: Downsampling | None = None
    archive: Archiving | None = None
    budget_bytes: Annotated[
        Positive | None, Field(description="Intended size limit of its tables. Nothing is deleted for it.")
    ] = None
    growth_bytes_per_day: Annotated[
        Positive | None,
        Field(description="Intended limit of the daily growth of its tables. Nothing is deleted for it."),
    ] = None
    everything: Annotated[bool, Field(description="Allows a rule that deletes everything; it needs tier: 2.")] = False
    tier: Annotated[Positive, Field(description="How many people must approve a plan of this rule.")] = 1


@dataclass(frozen=True, kw_only=True)
class DemandItem:
    """Requirements for the buckets of some tables."""

    where: TablesSelection
    reason: Text
    owner: Text | None = None
    encrypted: Annotated[Literal[True] | None, Field(description="Encrypted with any key.")] = None
    keys: Annotated[Texts | None, Field(description="Encrypted with one of these keys, as the store names them.")] = (
        None
    )
    regions: Annotated[
        tuple[Region, ...] | None, Field(min_length=1, description="In one of these regions, as the store names them.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class PolicyFile(Answerable):
    """A file of rules and demands. A name may be used only once in all files."""

    version: Literal[1]
    rules: dict[str, RuleItem]
    places: Annotated[dict[str, DemandItem], Field(description="Requirements for the buckets of tables.")] = field(
        default_factory=dict
    )
    grace_days: Annotated[
        int, Field(ge=0, le=365, description="For how many days 'ranklake retain cancel' can undo an applied plan.")
    ] = 0


@dataclass(frozen=True, kw_only=True)
class GivenRows:
    """Rows of a policy test."""

    table: Text
    age_days: Annotated[int, Field(ge=0)]
    column: Annotated[Text | None, Field(description="Column whose values are tested.")] = None
    run: Text | None = None
    tags: Mapping[str, Any] = field(default_factory=dict)
    team: Text | None = None
    environment: Text | None = None
    metric: Text | None = None
    severity: Literal["trace", "debug", "info", "warning", "error", "fatal"] | None = None


@dataclass(frozen=True, kw_only=True)
class CaseItem:
    """A policy test."""

    given: GivenRows
    expect: Literal["kept", "deleted", "masked", "archived"]
    name: Text | None = None
    by: Annotated[Text | None, Field(description="The rule that must decide.")] = None


@dataclass(frozen=True, kw_only=True)
class CasesFile:
    """A file of policy tests."""

    version: Literal[1]
    tests: Annotated[tuple[CaseItem, ...], Field(min_length=1)]


def json_schema() -> dict[str, Any]:
    """Return a JSON Schema of policy files and policy tests."""
    adapter: TypeAdapter[Any] = TypeAdapter(PolicyFile | CasesFile, config=ConfigDict(extra="forbid", strict=True))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **adapter.json_schema()}


def json_schema_text() -> str:
    """Return the JSON Schema as the text of a file."""
    return json.dumps(json_schema(), indent=2) + "\n"
