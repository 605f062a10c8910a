"""Files of playbooks: their schema. All faults are reported at once, each with its line."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.rollups.detectors.registry import DETECTORS
from ranklake.lake.rollups.failures import library
from ranklake.lake.rollups.incidents import SEVERITIES
from ranklake.operator_files import KeyPath, OperatorFile, raise_all
from ranklake.redaction.redact import has_credential
from ranklake.retention.policies.file import Patterns, Positive, Text, Texts
from ranklake.segments.references import is_reference

KINDS: Final = ("tell", "check", "query", "propose", "command", "webhook")
"""Kinds of steps."""
ACTING: Final = frozenset({"command", "webhook"})
"""Kinds of steps with effects outside of the lake, which run only with ``allow: true``."""
Argv = Annotated[tuple[Text, ...], Field(min_length=1)]
Name = Annotated[str, Field(pattern="^[a-z0-9][a-z0-9_-]{0,62}$")]
Facts = Mapping[str, frozenset[str]]
"""Facts of an incident, by key of `Selection`; an unknown one is absent, and matches nothing."""


class PlaybookError(RanklakeError):
    """Files of playbooks that cannot be used. No step was run."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Selects incidents. Every key must match; of a list, one text must. Texts may contain * and ?."""

    detector: Annotated[Patterns, Field(description="Detectors, one of whose findings is in the incident.")] = ()
    cause: Annotated[Patterns, Field(description="Likely causes, by the failure library.")] = ()
    severity: Patterns = ()
    run: Patterns = ()
    job: Patterns = ()
    team: Patterns = ()
    environment: Annotated[Patterns, Field(description="Deployment environment of the run, or its label.")] = ()
    tag: Annotated[Patterns, Field(description="Label of the run: name=value, a name, or a value.")] = ()
    model: Annotated[Patterns, Field(description="Value of the run's label 'model'.")] = ()

    def patterns(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield each key with its texts."""
        for key, texts in vars(self).items():
            if texts:
                yield key, (texts,) if isinstance(texts, str) else texts

    def matches(self, facts: Facts) -> bool:
        """Whether an incident is selected."""
        return all(
            any(fnmatchcase(value, text) for value in facts.get(key, ()) for text in texts)
            for key, texts in self.patterns()
        )


@dataclass(frozen=True, kw_only=True)
class Receiver:
    """A receiver: a command, a webhook, or neither, which only gives an audit row."""

    command: Argv | None = None
    webhook: Text | None = None
    pass_env: tuple[Text, ...] = ()

    def __post_init__(self) -> None:
        if self.command and self.webhook:
            raise ValueError("has a command and a webhook; write one of them")


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step: its action, and a selection of the playbook's incidents."""

    name: Name
    where: Annotated[Selection, Field(description="A branch: incidents that it is done for.")] = field(
        default_factory=Selection
    )
    tell: Annotated[Text | None, Field(description="A receiver's name.")] = None
    check: Annotated[Texts | None, Field(description="Tables whose new partitions are checked.")] = None
    query: Annotated[Text | None, Field(description="A SELECT; it may read the incident's row as 'incident'.")] = None
    expect: Annotated[
        Literal["rows", "no rows"] | None, Field(description="Of a query: else the playbook ends there.")
    ] = None
    propose: Annotated[Text | None, Field(description="What somebody should do, in words.")] = None
    command: Annotated[Argv | None, Field(description="A program and its arguments, without a shell.")] = None
    webhook: Annotated[Text | None, Field(description="A URL, or where it is: env:NAME, file:/path.")] = None
    allow: Annotated[bool, Field(description="Whether the command or webhook runs; else it is proposed.")] = False
    timeout_s: Annotated[int, Field(ge=1, le=3600)] = 60
    pass_env: Annotated[tuple[Text, ...], Field(description="Variables that a command gets.")] = ()

    def __post_init__(self) -> None:
        kinds = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(kinds) != 1 and (len(kinds) != 2 or kinds[0] != "propose"):  # noqa: PLR2004 - words and their purpose
            given = f"has {' and '.join(kinds)}" if kinds else "does nothing"
            raise ValueError(f"{given}: write one of {', '.join(KINDS)}; only propose goes with a command or webhook")
        if self.allow and self.kind not in ACTING:
            raise ValueError("allow is for a step with a command or webhook")
        if self.expect and self.kind != "query":
            raise ValueError("expect is for a step with a query")

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        return next(kind for kind in reversed(KINDS) if getattr(self, kind) is not None)

    @property
    def acts(self) -> bool:
        """Whether it runs if playbooks may act, instead of being proposed."""
        return self.allow or self.kind not in {*ACTING, "propose"}


@dataclass(frozen=True, kw_only=True)
class Playbook:
    """Steps for some incidents."""

    where: Selection
    reason: Annotated[Text, Field(description="Why; kept with all that it does.")]
    owner: Annotated[Text, Field(description="Who answers for it.")]
    steps: Annotated[tuple[Step, ...], Field(min_length=1)]
    per_hour: Annotated[Positive, Field(description="Steps that it takes in an hour at most.")] = 10


@dataclass(frozen=True, kw_only=True)
class GivenIncident:
    """An incident of a test."""

    detector: Text
    severity: Literal["info", "warning", "error", "critical"] = "error"
    cause: Text | None = None
    run: Text | None = None
    job: Text | None = None
    team: Text | None = None
    environment: Text | None = None
    tags: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A test: a given incident, and the expected steps, as playbook.step."""

    given: GivenIncident
    expect: tuple[Text, ...]
    name: Text | None = None


@dataclass(frozen=True, kw_only=True)
class PlaybookFile:
    """A file of playbooks, with names that are unique over all files, and tests."""

    version: Literal[1]
    playbooks: dict[str, Playbook]
    receivers: dict[str, Receiver] = field(default_factory=dict)
    tests: tuple[Case, ...] = ()


@dataclass(frozen=True, slots=True)
class Playbooks:
    """All playbooks, receivers, and tests, each with its place in a file.

    Attributes
    ----------
    folder
        Working folder of commands.
    """

    folder: Path
    playbooks: Mapping[str, Playbook]
    receivers: Mapping[str, Receiver]
    cases: Sequence[tuple[str, Case]]


def load_playbooks(place: Path) -> Playbooks:
    """Read a file, or all files of a folder. Raises `PlaybookError` with all faults of the first faulty file."""
    paths = sorted([*place.glob("*.yaml"), *place.glob("*.yml")]) if place.is_dir() else [place]
    if not paths:
        raise PlaybookError("no file of playbooks is there", where=str(place), hint="write one; see docs/playbooks.md")
    files = [(file := OperatorFile(path, error=PlaybookError, noun="file of playbooks"), file.load(PlaybookFile))
             for path in paths]  # fmt: skip
    receivers = {name: receiver for _, each in files for name, receiver in each.receivers.items()}
    steps = {f"{name}.{step.name}" for _, each in files for name, book in each.playbooks.items() for step in book.steps}
    playbooks: dict[str, Playbook] = {}
    for file, each in files:
        raise_all(_faults(file, each, receivers, steps, set(playbooks)))
        playbooks |= each.playbooks
    cases = [
        (f"{file.path}:{file.line(('tests', index))}", case)
        for file, each in files for index, case in enumerate(each.tests)
    ]  # fmt: skip
    return Playbooks(place if place.is_dir() else place.parent, playbooks, receivers, cases)


def _faults(
    file: OperatorFile, each: PlaybookFile, receivers: Mapping[str, Receiver], steps: set[str], before: set[str]
) -> Iterator[RanklakeError]:
    """Yield faults: unknown and repeated names, and invalid webhooks."""
    for name, receiver in each.receivers.items():
        yield from _bad_webhook(file, ("receivers", name, "webhook"), receiver.webhook)
    for name, book in each.playbooks.items():
        at: KeyPath = ("playbooks", name)
        if name in before:
            yield file.error(at, f"another file has a playbook {name!r}, too", "call it otherwise")
        yield from _unknown_names(file, (*at, "where"), dict(book.where.patterns()))
        names = [step.name for step in book.steps]
        for place, step in enumerate(book.steps):
            if step.name in names[:place]:
                yield file.error((*at, "steps", place), f"two steps of {name!r} are called {step.name!r}", "rename one")
            yield from _step_faults(file, (*at, "steps", place), step, receivers)
    for place, case in enumerate(each.tests):
        given = {key: (value,) for key, value in vars(case.given).items() if key in _KNOWN and value}
        yield from _unknown_names(file, ("tests", place, "given"), given)
        for step_name in case.expect:
            if step_name not in steps:
                hint = did_you_mean(step_name, steps)
                yield file.error(("tests", place, "expect"), f"there is no step {step_name!r}", hint)


def _step_faults(
    file: OperatorFile, at: KeyPath, step: Step, receivers: Mapping[str, Receiver]
) -> Iterator[RanklakeError]:
    yield from _unknown_names(file, (*at, "where"), dict(step.where.patterns()))
    yield from _bad_webhook(file, (*at, "webhook"), step.webhook)
    if step.tell is not None and step.tell not in receivers:
        hint = did_you_mean(step.tell, receivers) or "add it under receivers:"
        yield file.error((*at, "tell"), f"there is no receiver {step.tell!r}", hint)
    tables = load_contracts() if step.check else {}
    for table in step.check or ():
        if table not in tables:
            yield file.error((*at, "check"), f"there is no table {table!r}", did_you_mean(table, tables))


_KNOWN: Final = {
    "detector": frozenset(each.name for each in DETECTORS),
    "cause": frozenset(library()),
    "severity": frozenset(SEVERITIES),
}


def _unknown_names(file: OperatorFile, at: KeyPath, where: Mapping[str, tuple[str, ...]]) -> Iterator[RanklakeError]:
    for key, texts in where.items():
        for text in texts:
            if key in _KNOWN and not any(fnmatchcase(name, text) for name in _KNOWN[key]):
                yield file.error((*at, key), f"there is no {key} {text!r}", did_you_mean(text, _KNOWN[key]))


def _bad_webhook(file: OperatorFile, at: KeyPath, webhook: str | None) -> Iterator[RanklakeError]:
    if webhook is None or is_reference(webhook):
        return
    if not webhook.startswith(("https://", "http://")):
        yield file.error(at, "a webhook begins with https:// or http://", "or name where it is: env:NAME, file:/path")
    elif has_credential(webhook):
        yield file.error(at, "the webhook holds a credential", "name where it is instead: env:NAME or file:/path")


def keys_of(where: Selection) -> str:
    """Return a selection as text, such as ``detector non_finite, severity error or critical``."""
    return ", ".join(f"{key} {' or '.join(texts)}" for key, texts in where.patterns()) or "all incidents"
