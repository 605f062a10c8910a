"""A round of alerts: what lasts is asked for, what is due is sent, and all of it is written down.

    stored state ──▶ signals ──▶ evaluate ──due?──▶ claim ──▶ send ──▶ history ──▶ stored state
                                    └────────── nothing due: stored where it changed

A process that dies after the claim leaves it, and the next one that comes after the claim's end sends the same.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from ranklake.insight.alerts.report import firing
from ranklake.insight.runs.asking import asking
from ranklake.pipeline.alerts.delivery import DeliveryRound, deliver_round
from ranklake.pipeline.alerts.file import AlertFile
from ranklake.pipeline.alerts.history import open_records, records_after, still_open, write_history
from ranklake.pipeline.alerts.message import AlertFacts
from ranklake.pipeline.alerts.rule_queries import QUERY_TIMEOUT_S
from ranklake.pipeline.alerts.signals import current_signals, with_own_rule
from ranklake.pipeline.alerts.state import AlertState, Evaluation, evaluate, firing_alerts
from ranklake.pipeline.alerts.stored_state import StoredState, load_state, save_state
from ranklake.pipeline.health.problems import Problem

if TYPE_CHECKING:
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake

CLAIM: Final = timedelta(minutes=5)
"""For how long nobody else sends: longer than all receivers may take together."""
_SKEW: Final = timedelta(minutes=1)
"""How far clocks may be apart: a claim that holds for longer is that of a clock that is wrong, and does not hold."""
Deliver = Callable[[Evaluation, AlertFile, datetime, Mapping[str, AlertFacts]], DeliveryRound]
"""Sends what is due: `ranklake.pipeline.alerts.delivery.deliver_round`."""


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What a round did.

    Attributes
    ----------
    firing, pending
        Alerts, after it.
    messages
        That receivers took.
    lost
        Why receivers did not take others, by receiver.
    unknown
        Rules that could not be evaluated.
    is_left_to_another
        Whether another process sends what is due, so that this one did nothing; alerts are those that it knows.
    """

    firing: int = 0
    pending: int = 0
    messages: int = 0
    lost: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    is_left_to_another: bool = False

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "firing": self.firing, "pending": self.pending, "messages": self.messages, "lost": dict(self.lost),
            "unknown": list(self.unknown), "is_left_to_another": self.is_left_to_another,
        }  # fmt: skip


def run_round(
    lake: "Lake",
    file: AlertFile,
    now: datetime,
    deliver: Deliver = deliver_round,
    *,
    role: "Role | None" = None,
    problems: Callable[[], Iterable[Problem]] = tuple,
    pages: str = "",
    query_timeout_s: float = QUERY_TIMEOUT_S,
) -> RoundResult:
    """Evaluate the rules once and send what is due; raises what the store raises, and what queries do about it.

    Killed or failing anywhere, it leaves what is due to a later round: nothing is lost, and what was sent already is
    sent again under the same id.

    Parameters
    ----------
    role
        Whose rows and masks hold in messages.
    problems
        Finds what is wrong with the pipeline itself.
    pages
        Where people open the report's pages.
    """
    rules = with_own_rule(file)
    stored = load_state(lake.store)
    if stored.claimed_until is not None and now < stored.claimed_until <= now + CLAIM + _SKEW:
        return _left_to_another(stored.state)
    if stored.is_behind:
        stored = stored.with_open(open_records(firing(asking(lake)).rows))
    active = frozenset(alert.subject for alert in stored.state.alerts.values())
    current = current_signals(
        lake, rules, now, role=role, active=active, query_timeout_s=query_timeout_s, pages=pages,
        problems=lambda: (*_damages(stored), *problems()),
    )  # fmt: skip
    evaluation = evaluate(rules, stored.state, current.signals, now, current.unknown)
    due, claimed = evaluation.notifications, stored
    if due:
        claimed = stored.following(state=evaluation.state, claimed_until=now + CLAIM)
        if not save_state(lake.store, claimed):
            return _left_to_another(evaluation.state)
    try:
        delivery = deliver(evaluation, rules, now, current.facts_of(rules, evaluation.state.alerts.values()))
    except BaseException:
        if due:
            save_state(lake.store, claimed.following(claimed_until=None))
        raise
    records = records_after(rules, stored.records, delivery.state, due, delivery.results, now)
    write_history(lake.tables, stored.records, records, now)
    kept = still_open(records, delivery.state)
    if due or delivery.state != stored.state or kept != stored.records:
        save_state(lake.store, claimed.following(state=delivery.state, records=kept, claimed_until=None))
    return _result(delivery, current.unknown)


def _damages(stored: StoredState) -> Iterator[Problem]:
    if stored.damaged:
        message = f"what was sent of alerts cannot be read: {', '.join(stored.damaged)}; some may be sent once more"
        yield Problem("alerts", message)


def _left_to_another(state: AlertState) -> RoundResult:
    count = len(firing_alerts(state))
    return RoundResult(firing=count, pending=len(state.alerts) - count, is_left_to_another=True)


def _result(delivery: DeliveryRound, unknown: Iterable[str]) -> RoundResult:
    count = len(firing_alerts(delivery.state))
    return RoundResult(
        firing=count,
        pending=len(delivery.state.alerts) - count,
        messages=sum(each.is_delivered and bool(each.notification) for each in delivery.results),
        lost={each.receiver: each.error for each in delivery.results if not each.is_delivered},
        unknown=tuple(sorted(unknown)),
    )
