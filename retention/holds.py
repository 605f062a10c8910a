"""Legal holds: rows that nothing may take until a day. Each is a row of the audit trail, so nobody can lift it unseen.

    set_hold ──▶ audit row ``retention.hold`` ──holds_of──▶ plans, applications, explanations: before every rule

A hold is about rows as a rule is (`ranklake.retention.rules.model`), and perhaps about some dates only. It ends on its
day and not before: nothing lifts one yet.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.audit.trail import record, trail
from ranklake.lake.contracts.load import contract
from ranklake.lake.delta.read import read
from ranklake.lake.plans.driver import finish
from ranklake.lake.plans.kinds import RETENTION
from ranklake.lake.plans.workers import InProcess
from ranklake.retention.rules.model import ALL_KINDS, KEYS, SEVERITIES, Place, Rule

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.storage.store import Lake

ACTION: Final = "retention.hold"
_DATE: Final = "date"
_TO: Final = ".."
_TRAIL: Final = Path("audit")


class HoldError(RanklakeError):
    """A hold that would protect nothing, or that says nothing; none was set."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A legal hold.

    Attributes
    ----------
    name
        Its identity, a digest of what it says.
    rule
        What it is about, and why; its owner is who set it.
    first, last
        Dates of the rows that it is about; None if it has no such bound.
    until
        First day on which it does not hold any more.
    since
        When it was set.
    """

    name: str
    rule: Rule
    first: date | None
    last: date | None
    until: date
    since: datetime

    def covers(self, day: date) -> bool:
        """Say whether it is about rows of a date."""
        return (self.first is None or self.first <= day) and (self.last is None or day <= self.last)

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values. Who set it stands in the audit trail alone."""
        return {
            "hold": self.name,
            "where": {key: list(texts) for key, texts in self.rule.where.items()},
            "first_date": None if self.first is None else self.first.isoformat(),
            "last_date": None if self.last is None else self.last.isoformat(),
            "until": self.until.isoformat(),
            "since": self.since.isoformat(),
            "reason": self.rule.reason,
        }


def set_hold(
    lake: "Lake",
    contracts: "Mapping[str, Contract]",
    where: Sequence[str],
    reason: str,
    until: date,
    by: str,
    today: date | None = None,
) -> Hold:
    """Set a hold, and return it; one that says the same stays as it is.

    What an application that died left half done is finished first: what was begun before the hold is not held.

    Parameters
    ----------
    where
        ``key=text`` each, of the keys of rules, or ``date=FROM..TO``; texts of one key are alternatives.

    Raises
    ------
    HoldError
        A key or a name does not exist, nothing is said, or the day is past. Nothing was changed.
    """
    if until <= (today or datetime.now(UTC).date()):
        raise HoldError(f"{until} is past", where="--until", mend="name a day to come")
    if not reason.strip():
        raise HoldError("a hold needs a reason", where="--reason", mend="say what it is for")
    said = _said(where)
    _refuse_unknown(lake, contracts, said)
    _span(said.get(_DATE, ()))
    details = {"where": {key: sorted(texts) for key, texts in sorted(said.items())}, "until": until.isoformat()}
    name = "hold-" + hashlib.sha256(json.dumps([details, reason], sort_keys=True).encode()).hexdigest()[:12]
    finish(lake, RETENTION, InProcess())
    record(lake, by, ACTION, name, reason, details, once=True)
    return next(one for one in all_holds(lake) if one.name == name)


def all_holds(lake: "Lake") -> list[Hold]:
    """Return every hold that was ever set, the oldest first."""
    return [_hold(row) for row in trail(lake) if row["action"] == ACTION]


def holds_of(lake: "Lake", day: date) -> list[Hold]:
    """Return the holds that hold on a day."""
    return [one for one in all_holds(lake) if day < one.until]


def rules_on(holds: Sequence[Hold], day: date) -> tuple[Rule, ...]:
    """Return what holds say of rows of a date, as rules."""
    return tuple(one.rule for one in holds if one.covers(day))


def _hold(row: Mapping[str, Any]) -> Hold:
    details = json.loads(row["details"])
    where = {key: tuple(texts) for key, texts in details["where"].items()}
    first, last = _span(where.pop(_DATE, ()))
    rule = Rule(row["subject"], where, row["actor"], row["reason"] or "", "a legal hold", Place(_TRAIL, row["seq"]))
    return Hold(row["subject"], rule, first, last, date.fromisoformat(details["until"]), row["ts"])


def _said(where: Sequence[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for one in where:
        key, equals, text = one.partition("=")
        if not equals or not text:
            raise HoldError(f"{one!r} is no condition", where="--where", mend="write key=text, such as run=r1")
        if key not in {*KEYS, _DATE}:
            raise HoldError(f"there is no key {key!r}", where="--where", mend=did_you_mean(key, {*KEYS, _DATE}))
        found[key] = (*found.get(key, ()), text)
    if not found:
        raise HoldError("a hold needs to say what it is about", where="--where", mend="write key=text, such as run=r1")
    return found


def _span(texts: Sequence[str]) -> tuple[date | None, date | None]:
    """Return the bounds of ``FROM..TO``, of which one may be left out, or of one date."""
    if not texts:
        return None, None
    if len(texts) > 1:
        raise HoldError("more than one range of dates", where="--where", mend="set a hold for each")
    first, to, last = texts[0].partition(_TO)
    try:
        low, high = (date.fromisoformat(text) if text else None for text in (first, last if to else first))
    except ValueError:
        mend = "write date=2026-03-01..2026-03-31, or one date"
        raise HoldError(f"{texts[0]!r} is no range of dates", where="--where", mend=mend) from None
    if low is not None and high is not None and low > high:
        raise HoldError(f"{low} is after {high}", where="--where", mend="name the first date first")
    return low, high


def _refuse_unknown(lake: "Lake", contracts: "Mapping[str, Contract]", said: Mapping[str, Sequence[str]]) -> None:
    """Raise `HoldError` for names that nothing has: such a hold would protect nothing."""
    known: dict[str, Collection[str]] = {
        "table": contracts,
        "class": {one.retention for one in contracts.values()},
        "kind": ALL_KINDS,
        "severity": SEVERITIES,
    }
    if "run" in said:
        known["run"] = {run for run in read(lake, contract("segments"), ["run"])["run"].unique().to_pylist() if run}
    for key, names in known.items():
        for text in said.get(key, ()):
            if not any(fnmatchcase(name, text) for name in names):
                raise HoldError(f"there is no {key} {text!r}", where="--where", mend=did_you_mean(text, names))
    rule = Rule("", {key: tuple(texts) for key, texts in said.items() if key != _DATE}, "", "", "", Place(_TRAIL, 0))
    if not any(map(rule.may_match, contracts.values())):
        raise HoldError(f"no table has all of {', '.join(rule.where)}", where="--where", mend="leave one out")
