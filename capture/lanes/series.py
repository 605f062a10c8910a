"""Series: maps names of metrics, mappings and spans to small numbers before they reach the hot path.

A definition is written to meta.frames before its number is used in a slot, so that whoever reads the slot finds it.
"""

import itertools
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from ranklake.capture.common.gaps import BAD_NAME, TOO_LARGE, TOO_MANY_SERIES, RefusedError
from ranklake.capture.common.values import repr_of, text
from ranklake.capture.lanes.policies import OVERFLOW, SELF_METRICS, Policies
from ranklake.redaction.redact import redact_names

MAX_NAME: Final = 512
MAX_SCHEMAS: Final = 1_000
MAX_SPAN_NAMES: Final = 10_000


class Series:
    """The definitions of one process. All methods raise `RefusedError` where a name finds no number.

    Parameters
    ----------
    note
        Writes a frame to the stream's meta.frames; raises `RefusedError`.
    policies
        Judge the metrics.
    max_metrics
        How many there may be.

    Notes
    -----
    Look-ups of known names take no lock; new ones are added under a lock.
    """

    def __init__(self, note: Callable[[dict[str, Any]], None], policies: Policies, max_metrics: int) -> None:
        self._note = note
        self._policies, self._max_metrics = policies, max_metrics
        self._lock = threading.RLock()
        self._frames: list[dict[str, Any]] = []
        self._metrics: dict[object, int] = {}
        self._overflow: dict[object, int] = {}
        self._schemas: dict[tuple[int, ...], int] = {}
        self._members: dict[int, tuple[int, ...]] = {}
        self._spans: dict[tuple[object, ...], int] = {}
        self._numbers = {kind: itertools.count() for kind in ("metric", "schema", "span")}

    def metric(self, name: object, kind: object = None, unit: object = None, *, weight: float | None = None) -> int:
        """Return the number of a metric as it is declared here; `Policies.judge` says what is made of that.

        Parameters
        ----------
        kind, unit
            None is whatever the metric has.
        weight
            Under sampling, how many values each of the series' stands for: other weights are other numbers.
        """
        if type(name) is not str:
            name = check_name(name)
        key = name if kind is None and unit is None and weight is None else (name, word(kind), word(unit), weight)
        try:
            return self._metrics[key]
        except KeyError:
            return self._new_metric(key, check_name(name), word(kind), word(unit), weight)

    def _new_metric(self, key: object, name: str, kind: str | None, unit: str | None, weight: float | None) -> int:
        with self._lock:
            full = name not in SELF_METRICS and self._user_metric_count() >= self._max_metrics
            facts = self._policies.overflow(name) if full else {"n": name, **self._policies.judge(name, kind, unit)}
            if weight is not None and not full:
                facts["w"] = weight
            known = self._overflow if full else self._metrics
            limit = self._max_metrics + len(SELF_METRICS)
            return self._define("metric", known, OVERFLOW if full else key, limit, facts)

    def _user_metric_count(self) -> int:
        """Return how many metrics there are of the user's."""
        return len(self._metrics) - sum(name in self._metrics for name in SELF_METRICS)

    def schema(self, metrics: tuple[int, ...]) -> int:
        """Return the number of a mapping's metrics in their order."""
        known = self._schemas.get(metrics)
        if known is not None:
            return known
        number = self._define("schema", self._schemas, metrics, MAX_SCHEMAS, {"of": metrics})
        self._members[number] = metrics
        return number

    def span(self, name: object, kind: str, **facts: str | int | None) -> int:
        """Return the number of a span's name together with what all its spans have in common."""
        if type(name) is not str:
            name = check_name(name)
        try:
            return self._spans[name, kind, *facts.items()]
        except KeyError:
            facts = {key: value for key, value in facts.items() if value is not None}
            shown, key = check_name(name), (name, kind, *facts.items())
            return self._define("span", self._spans, key, MAX_SPAN_NAMES, {"name": shown, "kind": kind, **facts})

    def frames(self) -> list[dict[str, Any]]:
        """Return all definitions so far, for the meta.frames of a new stream.

        Takes no lock: `note` may wait for the caller's.
        """
        return list(self._frames)

    def values_in(self, schemas: Iterable[int]) -> int:
        """Return how many values slots of these schemas hold together."""
        return sum(len(self.metrics_of(schema)) for schema in schemas)

    def metrics_of(self, schema: int) -> tuple[int, ...]:
        """Return the metrics of a schema, in order; none if it is not known."""
        return self._members.get(int(schema), ())

    def after_fork(self) -> None:
        """In a forked child: numbers stay as they are; the lock may be held by a thread that is not there."""
        self._lock = threading.RLock()

    def _define(self, what: str, known: dict[Any, int], key: object, limit: int, facts: dict[str, Any]) -> int:
        with self._lock:
            if key in known:
                return known[key]
            if len(known) >= limit:
                raise RefusedError(TOO_MANY_SERIES, f"more than {limit} of kind {what}")
            number = next(self._numbers[what])
            frame = {"k": what, "i": number, **facts}
            # Listed before it is noted: if the stream is replaced in between, the new one has it as well, and twice
            # is harmless.
            self._frames.append(frame)
            try:
                self._note(frame)
            except BaseException:
                self._frames.remove(frame)
                raise
            known[key] = number
            return number


def check_name(name: object) -> str:
    """Return a name that can be stored, redacted; raise `RefusedError` unless it is 1 to 512 printable characters."""
    if not issubclass(type(name), str) or not (name := str.__str__(name)):  # a subclass may hash and compare at will
        raise RefusedError(BAD_NAME, repr_of(name)[:80])
    if len(name) > MAX_NAME:
        raise RefusedError(TOO_LARGE, f"a name of {len(name)} characters")
    if not name.isprintable():  # control characters, and surrogates that UTF-8 cannot carry
        raise RefusedError(BAD_NAME, repr(name)[:80])
    return str(redact_names(name))


def word(declared: object) -> str | None:
    """Return a declared kind or unit as text."""
    return None if declared is None else text(declared, 80)
