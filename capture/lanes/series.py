"""Series: assign small numbers to names of metrics, mappings and spans, for use in slots.

A definition is written to meta.frames before its number is used in a slot, so that readers of a slot always find it.
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
    """The definitions of one process. Methods raise `RefusedError` if a name cannot get a number.

    Parameters
    ----------
    note
        Appends a frame to meta.frames; raises `RefusedError`.
    policies
        Validates metrics against the registry.
    max_metrics
        Most metrics of the user.

    Notes
    -----
    Lookups of existing names take no lock; new names are added under a lock.
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
        """Return the number of a metric with the declared kind and unit; see `Policies.judge`.

        Parameters
        ----------
        kind, unit
            None means the registry's, or the first declared one.
        weight
            If the metric is sampled, the number of values that each kept value represents. Each weight has its own
            number.
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
            numbers = self._overflow if full else self._metrics
            limit = self._max_metrics + len(SELF_METRICS)
            return self._define("metric", numbers, OVERFLOW if full else key, limit, facts)

    def _user_metric_count(self) -> int:
        """Return the number of the user's metrics."""
        return len(self._metrics) - sum(name in self._metrics for name in SELF_METRICS)

    def schema(self, metrics: tuple[int, ...]) -> int:
        """Return the number of a mapping with these metrics, in this order."""
        existing_number = self._schemas.get(metrics)
        if existing_number is not None:
            return existing_number
        number = self._define("schema", self._schemas, metrics, MAX_SCHEMAS, {"of": metrics})
        self._members[number] = metrics
        return number

    def span(self, name: object, kind: str, **facts: str | int | None) -> int:
        """Return the number of a span's name with the facts that all its spans share."""
        if type(name) is not str:
            name = check_name(name)
        try:
            return self._spans[name, kind, *facts.items()]
        except KeyError:
            facts = {key: value for key, value in facts.items() if value is not None}
            checked, key = check_name(name), (name, kind, *facts.items())
            return self._define("span", self._spans, key, MAX_SPAN_NAMES, {"name": checked, "kind": kind, **facts})

    def frames(self) -> list[dict[str, Any]]:
        """Return all definitions so far, for the meta.frames of a new stream.

        It takes no lock, because `note` may wait for a lock of the caller.
        """
        return list(self._frames)

    def values_in(self, schemas: Iterable[int]) -> int:
        """Return the total number of values in slots of these schemas."""
        return sum(len(self.metrics_of(schema)) for schema in schemas)

    def metrics_of(self, schema: int) -> tuple[int, ...]:
        """Return the metrics of a schema, in order; empty for an unknown schema."""
        return self._members.get(int(schema), ())

    def after_fork(self) -> None:
        """Replace the lock in a forked child, because a thread of the parent may hold it. Numbers are kept."""
        self._lock = threading.RLock()

    def _define(self, kind: str, numbers: dict[Any, int], key: object, limit: int, facts: dict[str, Any]) -> int:
        with self._lock:
            if key in numbers:
                return numbers[key]
            if len(numbers) >= limit:
                raise RefusedError(TOO_MANY_SERIES, f"more than {limit} of kind {kind}")
            number = next(self._numbers[kind])
            frame = {"k": kind, "i": number, **facts}
            # Listed before it is written: if the stream is replaced in between, the new stream gets the definition,
            # too, and a repeated definition does no harm.
            self._frames.append(frame)
            try:
                self._note(frame)
            except BaseException:
                self._frames.remove(frame)
                raise
            numbers[key] = number
            return number


def check_name(name: object) -> str:
    """Return a name, redacted. Raises `RefusedError` unless it has 1 to 512 printable characters."""
    if not issubclass(type(name), str) or not (name := str.__str__(name)):  # a subclass may define hash and comparison
        raise RefusedError(BAD_NAME, repr_of(name)[:80])
    if len(name) > MAX_NAME:
        raise RefusedError(TOO_LARGE, f"a name of {len(name)} characters")
    if not name.isprintable():  # control characters, and surrogates, which UTF-8 does not allow
        raise RefusedError(BAD_NAME, repr(name)[:80])
    return str(redact_names(name))


def word(declared: object) -> str | None:
    """Return a declared kind or unit as text; None if it is None."""
    return None if declared is None else text(declared, 80)
