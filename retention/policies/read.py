"""Reads policy files: each is checked whole, and every mistake is a finding with its line and a hint."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ranklake.errors import RanklakeError
from ranklake.operator_files import OperatorFile
from ranklake.retention.policies.model import KEYS, SECTION, Demand, Destination, Place, Rule

if TYPE_CHECKING:
    from datetime import date

    from ranklake.lake.contracts.model import Contract
    from ranklake.retention.policies.file import Answerable, Archiving, RuleItem


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


PACKAGED: Final = Path(__file__).parent
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_HINT: Final = "docs/governance.md says what may stand there; so does schema.json of 'ranklake retain new'"


@dataclass(frozen=True, slots=True)
class Sources:
    """What a file or a folder of policies says.

    Attributes
    ----------
    rules
        All that can be understood.
    findings
        What cannot.
    documents
        The files that are YAML.
    sha256
        Of the bytes of the file; of a folder, of the names and bytes of its files.
    grace_days
        The longest grace that a file asks for; 0 where none does.
    demands
        What the places of tables must be.
    """

    rules: tuple[Rule, ...]
    findings: tuple[Finding, ...]
    documents: Mapping[Path, OperatorFile]
    sha256: str
    grace_days: int = 0
    demands: tuple[Demand, ...] = ()


@dataclass(frozen=True, slots=True)
class LintContext:
    """What lint goes by.

    Attributes
    ----------
    sources
        The files.
    rules
        Those that apply in the region.
    contracts
        All tables.
    region
        As configured; empty if it is not.
    today
        The day that review dates are held against.
    """

    sources: "Sources"
    rules: "tuple[Rule, ...]"
    contracts: "Mapping[str, Contract]"
    region: str
    today: "date"


def read_policies(place: Path) -> Sources:
    """Read a policy file, or all files of a folder. Raises nothing: what cannot be read is a finding."""
    # Most commands import this module and read no policies; pydantic takes longer to import than all the rest of it.
    from ranklake.retention.policies.file import PolicyFile

    paths = sorted([*place.glob("*.yaml"), *place.glob("*.yml")]) if place.is_dir() else [place]
    if not paths:
        finding = Finding("RP001", Place(place, 1), "no policy file in the folder", "put a .yaml file there")
        return Sources((), (finding,), {}, "")
    rules: list[Rule] = []
    findings: list[Finding] = []
    files: dict[Path, OperatorFile] = {}
    demands: list[Demand] = []
    grace_days = 0
    for path in paths:
        try:
            file = OperatorFile(path, noun="policy file")
        except RanklakeError as error:
            findings.append(_finding("RP001", path, error))
            continue
        files[path] = file
        content, errors = file.load_sound(PolicyFile, depth=2)
        findings += [_finding("RP002", path, error) for error in errors]
        if content is None:
            continue
        grace_days = max(grace_days, content.grace_days)
        for name, item in content.rules.items():
            rules.append(_rule(name, item, content, file))
            findings += _missing_keys(rules[-1])
        for name, demand in content.places.items():
            at = Place(path, file.line((SECTION, name)))
            demands.append(
                Demand(
                    name=name,
                    where=dict(demand.where.patterns()),
                    encrypted=bool(demand.encrypted or demand.keys),
                    keys=demand.keys or (),
                    regions=demand.regions or (),
                    owner=demand.owner or content.owner or "",
                    reason=demand.reason,
                    at=at,
                )
            )
    return Sources(tuple(rules), tuple(findings), files, _digest(place, paths), grace_days, tuple(demands))


def _finding(code: str, path: Path, error: RanklakeError) -> Finding:
    line = error.where.removeprefix(f"{path}").lstrip(":")
    return Finding(code, Place(path, int(line) if line.isdigit() else 1), error.what, error.hint or _HINT)


def _digest(place: Path, paths: list[Path]) -> str:
    if not place.is_dir():
        return hashlib.sha256(place.read_bytes() if place.is_file() else b"").hexdigest()
    digests = [f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in paths]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _rule(name: str, item: "RuleItem", shared: "Answerable", file: OperatorFile) -> Rule:
    where = dict(item.where.patterns())
    waiting = {
        "mask": item.mask_after_days,
        "downsample": None if item.downsample is None else item.downsample.after_days,
        "archive": None if item.archive is None else item.archive.after_days,
    }
    return Rule(
        name,
        {key: where[key] for key in (*KEYS, "column") if key in where},
        item.owner or shared.owner or "",
        item.reason,
        item.basis or shared.basis or "",
        Place(file.path, file.line(("rules", name))),
        deletes="delete_after_days" in file.content["rules"][name],
        delete_after_days=item.delete_after_days,
        minimum_days=item.minimum_days,
        maximum_days=item.maximum_days,
        budget_bytes=item.budget_bytes,
        growth_bytes_per_day=item.growth_bytes_per_day,
        destination=_destination(item.archive),
        waiting={action: days for action, days in waiting.items() if days is not None},
        interval_s=None if item.downsample is None else _seconds(item.downsample.interval),
        review=item.review or shared.review,
        region=item.region or shared.region or "",
        everything=item.everything,
        tier=item.tier,
    )


def _destination(item: "Archiving | None") -> Destination | None:
    if item is None:
        return None
    return Destination(item.to.rstrip("/"), item.storage_class, item.tag, free=item.rehydrate == "free")


def _seconds(text: str) -> int:
    return int(text[:-1]) * _UNITS[text[-1]]


def _missing_keys(rule: Rule) -> Iterator[Finding]:
    for key, value in (("owner", rule.owner), ("basis", rule.basis)):
        if not value:
            yield Finding("RP003", rule.at, f"rule {rule.name!r} has no {key}", f"add {key}: …, here or to the file")
