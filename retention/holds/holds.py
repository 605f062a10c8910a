"""Sets legal holds and finds the rows that they cover. Nothing may remove these rows until the hold ends.

    set_hold ──▶ audit row ``retention.hold`` ──holds_of──▶ plans, applications, explanations: before every rule

A hold selects rows as a rule does, optionally of some dates only. It ends on its day, or when its release is approved
(`ranklake.retention.holds.hold`).
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import did_you_mean
from ranklake.lake.audit.trail import record
from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.driver import finish
from ranklake.lake.plans.kinds import RETENTION
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.sql import session
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table, latest
from ranklake.retention.holds.hold import (
    ACTION,
    DATE,
    HOLD_RELEASES,
    TRAIL,
    Hold,
    HoldError,
    all_holds,
    release_times,
    span,
)
from ranklake.retention.policies.model import ALL_KINDS, KEYS, RUN_KEYS, SEVERITIES, Place, Rule
from ranklake.retention.policies.order import Level
from ranklake.retention.policies.parts import Parts, RunFacts, all_run_facts, run_facts
from ranklake.retention.proposals.approvals import note_mode, refuse_downgrade
from ranklake.retention.proposals.identities import DIGEST, NOT_SIGNING, SignedSubject, Signing, identify, statement_of
from ranklake.retention.proposals.proposals import digest_of, recorded_actions

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables

_KIND, _STEP = ACTION.split(".")
_MEASURED: Final = ("scalars", "distributions", "downsampled")
"""Tables with a column ``metric``."""


def set_hold(
    lake: "Lake",
    where: Sequence[str],
    reason: str,
    until: date,
    by: str,
    today: date | None = None,
    *,
    signing: Signing = NOT_SIGNING,
    future_names: bool = False,
) -> Hold:
    """Set a hold and return it. An equal hold that exists already is returned unchanged.

    Unfinished applications of retention plans are finished first, since the hold does not cover what they remove.

    Parameters
    ----------
    where
        Selectors ``key=text`` as in rules, or ``date=FROM..TO``; texts of one key are alternatives.
    signing
        The key or signed statement, if the lake requires signatures.
    future_names
        Whether unknown runs, teams, tags, environments and metrics are accepted.

    Raises
    ------
    HoldError
        A key or name does not exist, the selectors or the reason are empty, or the day is past. Nothing was changed.
    DowngradeError, SignatureError, NobodyError, StatementError, SignersError, SecretError
        As for `ranklake.retention.proposals.lifecycle.propose`. Nothing was changed.
    """
    details, about = _hold_details(lake, where, reason, until, today, future_names=future_names)
    trail = recorded_actions(lake.tables, HOLD_RELEASES)
    refuse_downgrade(lake, trail)
    if all(hold.name != about.proposal for hold in all_holds(lake.tables)):
        who = identify(lake, about, _STEP, by, reason, signing)
        finish(lake, RETENTION, InProcess())
        note_mode(lake, trail, who.name)
        signed = {**details, DIGEST: about.items_sha256, **who.details}
        record(lake, who.name, ACTION, about.proposal, reason, signed, once=True)
    return next(hold for hold in all_holds(lake.tables) if hold.name == about.proposal)


def hold_statement(
    lake: "Lake",
    where: Sequence[str],
    reason: str,
    until: date,
    by: str,
    *,
    future_names: bool = False,
) -> str:
    """Return the text to sign for setting a hold. Raises `HoldError`."""
    _, about = _hold_details(lake, where, reason, until, None, future_names=future_names)
    return statement_of(lake, about, _STEP, by, reason).text


def _hold_details(
    lake: "Lake",
    where: Sequence[str],
    reason: str,
    until: date,
    today: date | None,
    *,
    future_names: bool,
) -> tuple[dict[str, Any], SignedSubject]:
    """Return the details of a hold's audit row, and the signed subject. Raises `HoldError`."""
    if until <= (today or datetime.now(UTC).date()):
        raise HoldError(f"{until} is past", where="--until", hint="name a day to come")
    if not reason.strip():
        raise HoldError("a hold needs a reason", where="--reason", hint="say what it is for")
    conditions = _conditions(where)
    _refuse_unknown(lake, conditions, future_names=future_names)
    span(conditions.get(DATE, ()))
    details = {"where": {key: sorted(texts) for key, texts in sorted(conditions.items())}, "until": until.isoformat()}
    name = "hold-" + hashlib.sha256(json.dumps([details, reason], sort_keys=True).encode()).hexdigest()[:12]
    return details, SignedSubject(_KIND, name, digest_of([details]))


def rows_held(lake: "Lake", hold: Hold) -> int:
    """Return the number of stored rows that a hold covers."""
    runs = run_facts(lake.tables, [hold.rule])
    rows = 0
    for table in lake.contracts().values():
        handle = latest(lake.tables, table.table) if hold.rule.may_match(table) else None
        if handle is None:
            continue
        live = files(handle)
        matching = live.filter(
            pa.array([day is not None and hold.covers(day) for day in live["date"].to_pylist()], pa.bool_())
        )
        parts = Parts(lake, table, (), (hold.rule,), runs)
        if not parts.columns:
            rows += int(pc.sum(matching["num_records"]).as_py() or 0)
            continue
        for _, groups in parts.groups(matching):
            rows += sum(group.rows for group in groups if parts.of(group.values).level is Level.HOLD)
    return rows


def count_held(lake: "Lake", contract: "Contract", rows: pa.Table, hold: Hold, facts: RunFacts) -> int:
    """Return how many of the given rows of a table a hold covers, regardless of their dates."""
    parts = Parts(lake, contract, (), (hold.rule,), facts)
    if not parts.columns:
        return int(rows.num_rows) if parts.of_table().level is Level.HOLD else 0
    return int(pc.sum(parts.mask(rows, lambda values: parts.of(values).level is Level.HOLD)).as_py() or 0)


def holds_of(lake: "Lake", day: date) -> list[Hold]:
    """Return the holds in force on a day: not ended by that day, and not released."""
    active = [hold for hold in all_holds(lake.tables) if day < hold.until]
    released = release_times(lake) if active else {}
    return [hold for hold in active if hold.name not in released]


def rules_on(holds: Sequence[Hold], day: date) -> tuple[Rule, ...]:
    """Return the rules of the holds that cover a date."""
    return tuple(hold.rule for hold in holds if hold.covers(day))


def _conditions(where: Sequence[str]) -> dict[str, tuple[str, ...]]:
    conditions: dict[str, tuple[str, ...]] = {}
    for condition in where:
        key, equals, text = condition.partition("=")
        if not equals or not text:
            raise HoldError(f"{condition!r} is no condition", where="--where", hint="write key=text, such as run=r1")
        if key not in {*KEYS, DATE}:
            raise HoldError(f"there is no key {key!r}", where="--where", hint=did_you_mean(key, {*KEYS, DATE}))
        conditions[key] = (*conditions.get(key, ()), text)
    if not conditions:
        raise HoldError("a hold needs to say what it is about", where="--where", hint="write key=text, such as run=r1")
    return conditions


def _refuse_unknown(lake: "Lake", conditions: Mapping[str, Sequence[str]], *, future_names: bool) -> None:
    """Raise `HoldError` for unknown names, and for conditions that no table or no run meets together."""
    contracts = lake.contracts()
    table_names: dict[str, Collection[str]] = {
        "table": contracts,
        "class": {contract.retention for contract in contracts.values()},
        "kind": ALL_KINDS,
        "severity": SEVERITIES,
    }
    row_names = {} if future_names else _names_in(lake, conditions)
    for key, names in (table_names | row_names).items():
        for text in conditions.get(key, ()):
            if not any(fnmatchcase(name, text) for name in names):
                hint = did_you_mean(text, names)
                if key in row_names:
                    hint += f"{'; ' if hint else ''}if rows with that name are yet to come, add --future-names"
                raise HoldError(f"there is no {key} {text!r}", where="--where", hint=hint)
    run_conditions = {key: texts for key, texts in conditions.items() if key in RUN_KEYS}
    if len(run_conditions) > 1 and not future_names and not _any_run_matches(lake.tables, run_conditions):
        pairs = ", ".join(f"{key}={text}" for key, texts in run_conditions.items() for text in texts)
        message = f"no run has all of {pairs}"
        raise HoldError(message, where="--where", hint="set a hold for each, or add --future-names")
    rule = Rule(
        "", {key: tuple(texts) for key, texts in conditions.items() if key != DATE}, "", "", "", Place(TRAIL, 0)
    )
    if not any(map(rule.may_match, contracts.values())):
        raise HoldError(f"no table has all of {', '.join(rule.where)}", where="--where", hint="leave one out")


def _names_in(lake: "Lake", conditions: Mapping[str, Sequence[str]]) -> dict[str, Collection[str]]:
    """Return the names that rows have, or had, for the keys of the conditions."""
    names: dict[str, Collection[str]] = {}
    if conditions.keys() & RUN_KEYS:
        facts = all_run_facts(lake.tables)
        runs = read(lake.tables, contract("segments"), ["run"])["run"].unique().to_pylist()
        names["run"] = {run for run in (*runs, *facts) if run}
        for key in RUN_KEYS - {"run"}:
            names[key] = {text for fact in facts.values() for text in fact.get(key, ())}
    if "metric" in conditions:
        names["metric"] = {
            *lake.catalog.metrics(),
            *(name for table in _MEASURED for name in _stored_metrics(lake, table)),
        }
    return names


def _stored_metrics(lake: "Lake", table: str) -> list[str]:
    """Return the metrics of a table's rows."""
    if delta_table(lake.store, table) is None:
        return []
    rows = session(lake, [table]).sql(f'SELECT DISTINCT metric FROM "{table}"').to_arrow_table()  # noqa: S608 - a constant
    return [name for name in rows["metric"].to_pylist() if name]


def _any_run_matches(tables: "Tables", conditions: Mapping[str, Sequence[str]]) -> bool:
    """Return whether any run meets all conditions."""
    return any(
        all(
            any(
                fnmatchcase(text, pattern)
                for text in ({run} if key == "run" else facts.get(key, ()))
                for pattern in patterns
            )
            for key, patterns in conditions.items()
        )
        for run, facts in all_run_facts(tables).items()
    )
