"""Legal holds: rows that nothing may take until a day. Each is a row of the audit trail, so nobody can lift it unseen.

    set_hold ──▶ audit row ``retention.hold`` ──holds_of──▶ plans, applications, explanations: before every rule

A hold is about rows as a rule is (`ranklake.retention.rules.model`), and perhaps about some dates only. It ends on its
day, or when its release was approved (`ranklake.retention.hold_release`).
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ranklake.errors import did_you_mean
from ranklake.lake.audit.trail import record
from ranklake.lake.contracts.load import contract
from ranklake.lake.delta.read import read
from ranklake.lake.plans.driver import finish
from ranklake.lake.plans.kinds import RETENTION
from ranklake.lake.plans.workers import InProcess
from ranklake.retention.hold import ACTION, DATE, TRAIL, Hold, HoldError, all_holds, span
from ranklake.retention.hold_release import released
from ranklake.retention.rules.model import ALL_KINDS, KEYS, SEVERITIES, Place, Rule

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.storage.store import Lake


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
    span(said.get(DATE, ()))
    details = {"where": {key: sorted(texts) for key, texts in sorted(said.items())}, "until": until.isoformat()}
    name = "hold-" + hashlib.sha256(json.dumps([details, reason], sort_keys=True).encode()).hexdigest()[:12]
    finish(lake, RETENTION, InProcess())
    record(lake, by, ACTION, name, reason, details, once=True)
    return next(one for one in all_holds(lake) if one.name == name)


def holds_of(lake: "Lake", day: date) -> list[Hold]:
    """Return the holds that hold on a day: until their own, and as long as nobody released them."""
    found = [one for one in all_holds(lake) if day < one.until]
    gone = released(lake) if found else {}
    return [one for one in found if one.name not in gone]


def rules_on(holds: Sequence[Hold], day: date) -> tuple[Rule, ...]:
    """Return what holds say of rows of a date, as rules."""
    return tuple(one.rule for one in holds if one.covers(day))


def _said(where: Sequence[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for one in where:
        key, equals, text = one.partition("=")
        if not equals or not text:
            raise HoldError(f"{one!r} is no condition", where="--where", mend="write key=text, such as run=r1")
        if key not in {*KEYS, DATE}:
            raise HoldError(f"there is no key {key!r}", where="--where", mend=did_you_mean(key, {*KEYS, DATE}))
        found[key] = (*found.get(key, ()), text)
    if not found:
        raise HoldError("a hold needs to say what it is about", where="--where", mend="write key=text, such as run=r1")
    return found


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
    rule = Rule("", {key: tuple(texts) for key, texts in said.items() if key != DATE}, "", "", "", Place(TRAIL, 0))
    if not any(map(rule.may_match, contracts.values())):
        raise HoldError(f"no table has all of {', '.join(rule.where)}", where="--where", mend="leave one out")
