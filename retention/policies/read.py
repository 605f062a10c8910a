"""Reads policy files. Every mistake in a file becomes a finding with its line and a hint."""

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
    "RP003": "a rule or demand has no owner or no legal basis",
    "RP005": "an unknown name",
    "RP006": "a rule has no effect",
    "RP007": "a period for tables that are always kept",
    "RP008": "a retention class without a rule",
    "RP009": "a rule deletes everything",
    "RP010": "the bounds of a rule contradict each other",
    "RP011": "the bounds of two rules contradict each other",
    "RP012": "two rules or demands have the same name",
    "RP013": "columns without a mask, a mask without columns, or columns that cannot be masked",
    "RP014": "an action comes after the rows are deleted",
    "RP016": "a rule selects no table",
    "RP022": "a rule for a region, and no region is configured",
    "RP024": "a budget for part of a table",
    "RP025": "rows that cannot be downsampled",
    "RP026": "an archive that is not possible",
    "RP028": "a demand without a requirement or without a table",
}
"""Codes of mistakes that make the policies unusable."""
WARNINGS: Final[Mapping[str, str]] = {
    "RP015": "two rules select the same",
    "RP017": "a rule never decides",
    "RP018": "a review is overdue",
    "RP019": "a rule has no review date",
    "RP021": "a rule keeps rows longer than the runs that it selects by",
    "RP023": "a period of more than a hundred years",
    "RP027": "values are masked after they were archived",
    "RP029": "no place can meet two demands at once",
}
"""Codes of mistakes with which the policies are still used."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A mistake in policies: its code in `ERRORS` or `WARNINGS`, its place, a message, and how to fix it."""

    code: str
    at: Place
    message: str
    hint: str

    @property
    def error(self) -> bool:
        """Whether the mistake makes the policies unusable."""
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
    """The content of a policy file, or of all files in a folder.

    Attributes
    ----------
    rules
        All rules of the valid files.
    findings
        Mistakes found while reading.
    documents
        The files that are valid YAML, by path.
    sha256
        Digest of the file's bytes; for a folder, of the names and bytes of its files.
    grace_days
        The highest number of days of grace in a file; 0 if no file sets it.
    demands
        Requirements for the buckets of tables.
    """

    rules: tuple[Rule, ...]
    findings: tuple[Finding, ...]
    documents: Mapping[Path, OperatorFile]
    sha256: str
    grace_days: int = 0
    demands: tuple[Demand, ...] = ()


@dataclass(frozen=True, slots=True)
class LintContext:
    """Input of the lint checks.

    Attributes
    ----------
    sources
        The content of the policy files.
    rules
        The rules that apply in the region.
    contracts
        Contracts of all tables, by table.
    region
        The configured region; empty if none is.
    today
        The date to compare review dates with.
    """

    sources: "Sources"
    rules: "tuple[Rule, ...]"
    contracts: "Mapping[str, Contract]"
    region: str
    today: "date"


def read_policies(place: Path) -> Sources:
    """Read a policy file, or all policy files in a folder. Raises nothing: an unreadable file becomes a finding."""
    # Imported here because pydantic is slow to import, and most commands import this module without reading policies.
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
    action_days = {
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
        action_days={action: days for action, days in action_days.items() if days is not None},
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
