"""Reads policy files: each is checked whole, and what cannot be used of it is a finding with its line."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.document import Document, KeyPath
from ranklake.lake.contracts.errors import ContractError
from ranklake.lake.contracts.schema import Problem, problems
from ranklake.retention.policies.findings import Finding
from ranklake.retention.policies.model import KEYS, SECTION, Demand, Destination, Place, Rule

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract

PACKAGED: Final = Path(__file__).parent
SCHEMA: Final = PACKAGED / "schema.json"
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_INHERITED: Final = ("owner", "basis", "review", "region")


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
    documents: Mapping[Path, Document]
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


@cache
def schema(name: str) -> dict[str, Any]:
    """Return a definition of `SCHEMA`: ``rules`` or ``tests``."""
    found: dict[str, Any] = json.loads(SCHEMA.read_bytes())["$defs"][name]
    return found


def read_policies(place: Path) -> Sources:
    """Read a policy file, or all files of a folder. Raises nothing: what cannot be read is a finding."""
    paths = sorted([*place.glob("*.yaml"), *place.glob("*.yml")]) if place.is_dir() else [place]
    if not paths:
        finding = Finding("RP001", Place(place, 1), "no policy file in the folder", "put a .yaml file there")
        return Sources((), (finding,), {}, "")
    rules: list[Rule] = []
    findings: list[Finding] = []
    documents: dict[Path, Document] = {}
    demands: list[Demand] = []
    for path in paths:
        try:
            documents[path] = Document(path)
        except ContractError as error:
            findings.append(unreadable(path, error))
            continue
        some, wrong = _read(documents[path])
        asked, amiss = _demands(documents[path])
        rules += some
        demands += asked
        findings += [*wrong, *amiss]
    grace = max((_grace(document.content) for document in documents.values()), default=0)
    return Sources(tuple(rules), tuple(findings), documents, _digest(place, paths), grace, tuple(demands))


def unreadable(path: Path, error: ContractError) -> Finding:
    """Return the finding for a file that is no YAML, or cannot be read."""
    line = error.where.removeprefix(str(path)).lstrip(":")
    return Finding("RP001", Place(path, int(line) if line.isdigit() else 1), error.what, error.hint)


def _digest(place: Path, paths: list[Path]) -> str:
    if not place.is_dir():
        return hashlib.sha256(place.read_bytes() if place.is_file() else b"").hexdigest()
    told = [f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in paths]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()


def _read(document: Document) -> tuple[list[Rule], list[Finding]]:
    content, shape = document.content, schema("rules")
    found = list(problems(content, shape))
    items = content.get("rules") if isinstance(content, dict) else None
    of_one = shape["properties"]["rules"]["additionalProperties"]
    rules: list[Rule] = []
    unsaid: list[Finding] = []
    for name, facts in items.items() if isinstance(items, dict) else ():
        wrong = list(problems(facts, of_one, ("rules", name)))
        found += wrong
        if not wrong:
            every = {**_shared(content), **facts}
            rules.append(_rule(name, every, Place(document.path, document.line(("rules", name)))))
            unsaid += _missing_keys(document, rules[-1], every)
    return rules, [*_broken(document, found), *unsaid]


def _demands(document: Document) -> tuple[list[Demand], list[Finding]]:
    items = document.content.get(SECTION) if isinstance(document.content, dict) else None
    of_one = schema("rules")["properties"][SECTION]["additionalProperties"]
    demands: list[Demand] = []
    findings: list[Finding] = []
    for name, facts in items.items() if isinstance(items, dict) else ():
        if wrong := list(problems(facts, of_one, (SECTION, name))):
            findings += _broken(document, wrong)
            continue
        at = Place(document.path, document.line((SECTION, name)))
        demands.append(Demand.of(str(name), {**_shared(document.content), **facts}, at))
    return demands, findings


def _broken(document: Document, found: Iterable[Problem]) -> list[Finding]:
    return [
        Finding("RP002", Place(document.path, document.line(one.at)), one.what, one.hint or _remedy(one.at))
        for one in found
    ]


def _grace(content: Any) -> int:  # noqa: ANN401 - what a file holds
    """Return the grace that a file asks for; what is no number of days is a finding."""
    said = content.get("grace_days", 0) if isinstance(content, dict) else 0
    return said if type(said) is int else 0


def _remedy(at: KeyPath) -> str:
    """Return what to write instead of what breaks the schema."""
    key = next((str(step) for step in reversed(at) if isinstance(step, str)), "")
    if key == "delete_after_days":
        return "write a whole number of days, at least 1, or null for never"
    if key.endswith("_days"):
        return "write a whole number of days, at least 1"
    if key == "review":
        return "write a date such as 2027-06-30"
    return f"see {SCHEMA} for what may stand there"


def _shared(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: content[key] for key in _INHERITED if key in content}


def _rule(name: str, facts: Mapping[str, Any], at: Place) -> Rule:
    where = {key: (texts,) if isinstance(texts, str) else tuple(texts) for key, texts in facts["where"].items()}
    waiting = {
        **({"mask": facts["mask_after_days"]} if "mask_after_days" in facts else {}),
        **{action: facts[action]["after_days"] for action in ("downsample", "archive") if action in facts},
    }
    return Rule(
        name,
        {key: where[key] for key in (*KEYS, "column") if key in where},
        facts.get("owner", ""),
        facts["reason"],
        facts.get("basis", ""),
        at,
        deletes="delete_after_days" in facts,
        delete_after_days=facts.get("delete_after_days"),
        minimum_days=facts.get("minimum_days"),
        maximum_days=facts.get("maximum_days"),
        budget_bytes=facts.get("budget_bytes"),
        growth_bytes_per_day=facts.get("growth_bytes_per_day"),
        destination=_destination(facts.get("archive")),
        waiting=waiting,
        interval_s=_seconds(facts.get("downsample", {}).get("interval")),
        review=_date(facts.get("review")),
        region=facts.get("region", ""),
        everything=facts.get("everything", False),
        tier=facts.get("tier", 1),
    )


def _destination(said: Mapping[str, Any] | None) -> Destination | None:
    if said is None:
        return None
    free = said.get("rehydrate") == "free"
    return Destination(said["to"].rstrip("/"), said.get("storage_class"), said.get("tag"), free=free)


def _missing_keys(document: Document, rule: Rule, facts: Mapping[str, Any]) -> Iterator[Finding]:
    for key in ("owner", "basis"):
        if not facts.get(key):
            yield Finding("RP003", rule.at, f"rule {rule.name!r} has no {key}", f"add {key}: …, here or to the file")
    if "review" in facts and rule.review is None:
        at = Place(document.path, document.line(("rules", rule.name, "review")))
        yield Finding("RP004", at, f"{facts['review']} is no date", "write a day that exists, such as 2027-06-30")


def _seconds(text: str | None) -> int | None:
    return None if text is None else int(text[:-1]) * _UNITS[text[-1]]


def _date(text: str | None) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        return None
