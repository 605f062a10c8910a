"""What files of policies and of policy tests may hold; `ranklake retain new` writes it as JSON Schema, for editors."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter

Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[tuple[Text, ...], Field(min_length=1)]
Patterns = Text | Texts
"""Texts that may hold ``*`` and ``?``, one of which must match."""
Positive = Annotated[int, Field(ge=1)]
Region = Annotated[str, StringConstraints(pattern="^[a-z0-9][a-z0-9-]{0,62}$")]
Interval = Annotated[str, StringConstraints(pattern="^[1-9][0-9]*(s|m|h|d)$")]
StorageClass = Annotated[str, StringConstraints(pattern="^[A-Z][A-Z0-9_]*$")]
Tag = Annotated[str, StringConstraints(pattern="^[A-Za-z0-9 _.:/+@-]+=[A-Za-z0-9 _.:/+@-]*$")]


@dataclass(frozen=True, kw_only=True)
class TablesSelection:
    """Which tables; {} for all. Every key must match; of a list one text must. Texts may hold * and ?."""

    table: Patterns = ()
    kind: Annotated[
        Patterns,
        Field(description="Kind of data: scalars, artifacts, logs, samples, traces, rollups, books, other."),
    ] = ()
    class_: Annotated[Patterns, Field(alias="class", description="Retention class of the table's contract.")] = ()

    def patterns(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield each key that is given, with its texts."""
        for key, texts in vars(self).items():
            if texts:
                yield key.rstrip("_"), (texts,) if isinstance(texts, str) else texts


@dataclass(frozen=True, kw_only=True)
class RowsSelection(TablesSelection):
    """What the rule is about. Every key must match; of a list one text must. Texts may hold * and ?."""

    run: Patterns = ()
    tag: Annotated[Patterns, Field(description="Label of the run: name=value, a name, or a value.")] = ()
    team: Annotated[Patterns, Field(description="Team of the run.")] = ()
    environment: Annotated[Patterns, Field(description="Value of the run's label 'environment'.")] = ()
    metric: Annotated[Patterns, Field(description="Metric, such as train/*.")] = ()
    severity: Annotated[
        Patterns,
        Field(description="Severity of logs and events: trace, debug, info, warning, error, fatal."),
    ] = ()
    column: Annotated[Patterns, Field(description="Columns, of a rule that masks.")] = ()


@dataclass(frozen=True, kw_only=True)
class Downsampling:
    """Rows of whole tables become aggregates and histograms of intervals, which divide a day, from that age on."""

    after_days: Positive
    interval: Interval


@dataclass(frozen=True, kw_only=True)
class Archiving:
    """Rows move to another place once they are that old, and can be brought back from there for some days."""

    after_days: Positive
    to: Annotated[Text, Field(description="URI, or absolute path of a folder, for archives of this lake alone.")]
    storage_class: Annotated[
        StorageClass | None, Field(description="S3's class of verified copies, such as GLACIER; default: the bucket's.")
    ] = None
    tag: Annotated[
        Tag | None, Field(description="name=value that objects on S3 get, for a rule of the bucket's life cycle.")
    ] = None
    rehydrate: Annotated[
        Literal["approved", "free"], Field(description="Whether rows come back by an approved proposal alone.")
    ] = "approved"


@dataclass(frozen=True, kw_only=True)
class Answerable:
    """Who answers for a rule; what a file says at its top holds for all of its rules that do not say it."""

    owner: Annotated[Text | None, Field(description="Who answers for it.")] = None
    basis: Annotated[Text | None, Field(description="Legal grounds.")] = None
    review: Annotated[date | None, Field(description="Until when somebody must have looked at it again.")] = None
    region: Annotated[
        Region | None, Field(description="Where it applies; without it everywhere. As [retention] region.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class RuleItem(Answerable):
    """One rule."""

    where: RowsSelection
    reason: Annotated[Text, Field(description="Why not longer, or shorter; shown with everything that would go.")]
    delete_after_days: Annotated[
        Positive | None, Field(description="Rows go once they are that old; null: never by time.")
    ] = None
    minimum_days: Annotated[
        Positive | None, Field(description="Rows are kept at least that long, whatever other rules say.")
    ] = None
    maximum_days: Annotated[
        Positive | None, Field(description="Rows are kept at most that long; a minimum goes before it.")
    ] = None
    mask_after_days: Annotated[
        Positive | None, Field(description="Columns of where.column are masked once rows are that old.")
    ] = None
    downsample: Downsampling | None = None
    archive: Archiving | None = None
    budget_bytes: Annotated[
        Positive | None, Field(description="Most bytes that its tables should take. It deletes nothing.")
    ] = None
    growth_bytes_per_day: Annotated[
        Positive | None, Field(description="Most bytes a day by which its tables should grow. It deletes nothing.")
    ] = None
    everything: Annotated[bool, Field(description="Allows a rule that takes everything; it needs a tier of 2.")] = False
    tier: Annotated[Positive, Field(description="How many must approve a plan that the rule decides.")] = 1


@dataclass(frozen=True, kw_only=True)
class DemandItem:
    """What the places of some tables must be."""

    where: TablesSelection
    reason: Text
    owner: Text | None = None
    encrypted: Annotated[Literal[True] | None, Field(description="By whichever key.")] = None
    keys: Annotated[Texts | None, Field(description="By one of these keys, as the store names them.")] = None
    regions: Annotated[tuple[Region, ...] | None, Field(min_length=1, description="As the store names them.")] = None


@dataclass(frozen=True, kw_only=True)
class PolicyFile(Answerable):
    """A file of rules and demands, by names that stand once in all files."""

    version: Literal[1]
    rules: dict[str, RuleItem]
    places: Annotated[dict[str, DemandItem], Field(description="What the places of tables must be.")] = field(
        default_factory=dict
    )
    grace_days: Annotated[
        int, Field(ge=0, le=365, description="How long 'ranklake retain cancel' brings back what plans took.")
    ] = 0


@dataclass(frozen=True, kw_only=True)
class GivenRows:
    """Rows of a policy test."""

    table: Text
    age_days: Annotated[int, Field(ge=0)]
    column: Annotated[Text | None, Field(description="What becomes of its values.")] = None
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
    """Return a JSON Schema that files of either form keep to."""
    adapter: TypeAdapter[Any] = TypeAdapter(PolicyFile | CasesFile, config=ConfigDict(extra="forbid", strict=True))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **adapter.json_schema()}


def json_schema_text() -> str:
    """Return that schema as the text of a file."""
    return json.dumps(json_schema(), indent=2) + "\n"
