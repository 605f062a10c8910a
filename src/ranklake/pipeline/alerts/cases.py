"""Run the tests that stand in a file of alerts."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from ranklake.pipeline.alerts.file import AlertFile
from ranklake.pipeline.alerts.state import AlertState, Notification, Signal, evaluate, sent


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What a round of a test expects and what is sent in it, in any order."""

    name: str
    at_s: int
    expected: tuple[str, ...]
    sent: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether they are the same."""
        return sorted(self.expected) == sorted(self.sent)

    @property
    def line(self) -> str:
        """Both, in one line."""
        expected, actual = (", ".join(each) or "nothing" for each in (self.expected, self.sent))
        return f"{self.name}, at {self.at_s} s: expected {expected}, and it sends {actual}"


def run_cases(file: AlertFile) -> list[CaseResult]:
    """Run all tests; nothing is sent."""
    result: list[CaseResult] = []
    for case in file.tests:
        state = AlertState()
        for moment in case.rounds:
            now = case.start + timedelta(seconds=moment.at_s)
            signals = [Signal(**vars(signal)) for signal in moment.signals]
            evaluation = evaluate(file, state, signals, now, moment.unknown)
            state = evaluation.state
            texts: list[str] = []
            for notification in evaluation.notifications:
                if notification.receiver not in moment.lost:
                    state = sent(state, notification, now)
                    texts += lines(notification)
            result.append(CaseResult(case.name, moment.at_s, moment.expect, tuple(texts)))
    return result


def lines(notification: Notification) -> Iterator[str]:
    """Yield what a notification says, as tests expect it: ``receiver: firing rule/subject``, or repeated, resolved."""
    for alert in notification.firing:
        verb = "firing" if alert.key in notification.new else "still firing"
        yield f"{notification.receiver}: {verb} {alert.key}"
    for alert in notification.resolved:
        yield f"{notification.receiver}: resolved {alert.key}"
