"""What lasts now, of all sources that rules ask for.

A source that cannot be asked makes its rules unknown, and nothing else: their alerts stay as they are. A signal of the
source ``rules`` says which rule could not be evaluated, and why; a rule of our own takes it where a file has none.
"""

import logging
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from ranklake.errors import RanklakeError
from ranklake.insight.runs.asking import asking
from ranklake.lake.store.reachability import LakeUnreachableError
from ranklake.pipeline.alerts.file import OWN_RULE, AlertFile, Rule
from ranklake.pipeline.alerts.message import AlertFacts
from ranklake.pipeline.alerts.rule_queries import QUERY_TIMEOUT_S, run_queries
from ranklake.pipeline.alerts.sources import SOURCES, KnownSignal, Reader
from ranklake.pipeline.alerts.state import Alert, Signal
from ranklake.pipeline.health.problems import Problem
from ranklake.printable import counted

if TYPE_CHECKING:
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake

_LOG: Final = logging.getLogger(__name__)
MOST_OF_RULE: Final = 100
"""Rows of a rule's query that are signals; how many more there are is a signal of the pipeline."""
_RULES: Final = "rules"
"""Source of signals that a rule could not be evaluated, or not as a whole."""


@dataclass(frozen=True, slots=True)
class CurrentSignals:
    """What lasts now, what else is known of it by source and subject, and rules of which nothing is known."""

    signals: tuple[Signal, ...]
    facts: Mapping[tuple[str, str], AlertFacts]
    unknown: frozenset[str]

    def facts_of(self, file: AlertFile, alerts: Iterable[Alert]) -> dict[str, AlertFacts]:
        """Return what is known of alerts, by their keys; a rule's SQL is what shows its rows."""
        result = {}
        for alert in alerts:
            rule = file.rules[alert.rule]
            known = AlertFacts(sql=rule.sql) if rule.sql else self.facts.get((rule.source, alert.subject))
            if known:
                result[alert.key] = known
        return result


def with_own_rule(file: AlertFile) -> AlertFile:
    """Return the rules with one more, that a rule could not be evaluated, unless one of them is about that."""
    if any(rule.source == _RULES for rule in file.rules.values()):
        return file
    rule = Rule(
        source=_RULES,
        owner="whoever keeps the rules of alerts",
        summary="A rule could not be evaluated, or not as a whole: whether something is wrong is not known.",
    )
    return replace(file, rules={**file.rules, OWN_RULE: rule})


def current_signals(
    lake: "Lake",
    file: AlertFile,
    now: datetime,
    *,
    role: "Role | None" = None,
    active: Collection[str] = frozenset(),
    query_timeout_s: float = QUERY_TIMEOUT_S,
    problems: Callable[[], Iterable[Problem]] = tuple,
    pages: str = "",
) -> CurrentSignals:
    """Return what lasts of the sources that rules ask for, as a role sees it.

    Parameters
    ----------
    active
        Subjects of alerts that there are: they stay though they are old, or beyond what is kept of a query's rows.
    query_timeout_s
        How long the query of one rule may take.
    problems
        Finds what is wrong with the pipeline itself.
    pages
        Where people open the report's pages; empty if nobody says.

    Raises `LakeUnreachableError`; what else goes wrong is a signal.
    """
    reader = Reader(lake, role, asking(lake, role), now, active, problems, f"{pages.rstrip('/')}/" if pages else "")
    by_source: dict[str, list[str]] = {}
    for name, rule in file.rules.items():
        by_source.setdefault(rule.source, []).append(name)
    known: list[KnownSignal] = []
    faults: dict[str, str] = {}
    for source in SOURCES.keys() & by_source.keys():
        try:
            known += SOURCES[source](reader)
        except LakeUnreachableError:
            raise
        except RanklakeError as error:
            faults |= dict.fromkeys(by_source[source], str(error))
        except Exception as error:  # noqa: BLE001 - a bug in one source is no reason for silence about the others
            trace = "".join(traceback.format_exception(error))  # as text: a log that keeps it would keep files open
            _LOG.error("signals of %s cannot be made: %s", source, trace)
            faults |= dict.fromkeys(by_source[source], f"a bug in its source ({type(error).__name__})")
    signals = [each.signal for each in known]
    texts = {name: rule.sql for name, rule in file.rules.items() if rule.sql is not None}
    incomplete = {}
    for name, result in run_queries(lake, role, texts, query_timeout_s).items():
        if result.fault:
            faults[name] = result.fault
            continue
        kept = sorted(result.signals, key=lambda signal: signal.subject not in active)[:MOST_OF_RULE]
        signals += kept
        if left := len(result.signals) - len(kept):
            incomplete[name] = f"has {counted(len(kept), 'alert')} and {left:,} more: its query gives too many rows"
    incomplete |= {name: f"could not be evaluated: {why}" for name, why in faults.items()}
    signals += [
        Signal(
            source=_RULES, subject=name, severity="error", message=f"Rule {name} {text}", labels={"about": name}
        )
        for name, text in sorted(incomplete.items())
    ]  # fmt: skip
    facts = {(each.signal.source, each.signal.subject): each.facts for each in known}
    return CurrentSignals(tuple(signals), facts, frozenset(faults))
