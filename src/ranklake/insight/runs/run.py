"""Runs for Python programs: settings, summary and history, as `ranklake.lake.runs` returns them."""

import reprlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, overload

import pyarrow as pa

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.insight.arguments import ArgumentError, text, texts
from ranklake.insight.runs import statements
from ranklake.insight.runs.annotations import Annotations, annotations_of_each
from ranklake.insight.runs.asking import Reader, Row
from ranklake.insight.runs.facts import RunFacts, gather
from ranklake.insight.runs.find import find_run
from ranklake.insight.runs.history import PAGE_ROWS, STEPS, History, history
from ranklake.insight.runs.run_columns import FIGURES, RunColumns, Value, run_columns
from ranklake.insight.runs.values import RunValue, values_of_runs
from ranklake.lake.contracts.json_text import facts_in
from ranklake.lake.query.literal import literal

if TYPE_CHECKING:
    from datetime import datetime

_MOST_ACTIONS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class RunSource:
    """Source of runs.

    Attributes
    ----------
    reader
        Reads the lake as a role.
    kind
        Type of tables: ``arrow``, ``pandas`` or ``polars``.
    scalars
        Replacement for that table.
    note
        Records in the query log the columns that were used since the last call.
    """

    reader: Reader
    kind: str
    scalars: str
    note: Callable[[], None] = field(repr=False)

    @contextmanager
    def noted(self) -> Iterator[Reader]:
        """Yield the reader, and record what was read with it."""
        try:
            yield self.reader
        finally:
            self.note()

    def frame(self, table: pa.Table, as_: str | None) -> Any:  # noqa: ANN401 - the caller names the library
        """Return a table in the requested type, by default the common one."""
        return as_frame(table, as_ or self.kind)


class Run:
    """A run of a lake. Its facts are read on first use, and cached.

    Attributes
    ----------
    id
        The run's own name, unique in the lake.
    status, job
        Status and job of its last attempt.
    started_at, ended_at
        UTC; None if unknown.
    """

    def __init__(self, source: RunSource, row: Row) -> None:
        self._source, self._row = source, row
        self.id: str = row["run"]
        self.status: str | None = row["status"]
        self.job: str | None = row["job"]
        self.started_at: datetime | None = row["ts"]
        self.ended_at: datetime | None = row["end_ts"]

    def __repr__(self) -> str:
        return f"<Run {self.id!r} ({self.status})>"

    @cached_property
    def _annotations(self) -> Annotations:
        with self._source.noted() as reader:
            return annotations_of_each(reader.ask, [self.id])[0][self.id]

    @property
    def name(self) -> str:
        """Its display name: the given one, else one derived from its id."""
        return self._annotations.name

    @property
    def tags(self) -> dict[str, str | None]:
        """Its tags; one without a value has None."""
        return dict(self._annotations.tags)

    @cached_property
    def _settings(self) -> Row:
        of_run = statements.run_condition((self.id,))
        with self._source.noted() as reader:
            rows = reader.ask(f"SELECT config, labels FROM runs WHERE {of_run} ORDER BY attempt, ts").rows  # noqa: S608 - quoted
        return rows[-1] if rows else {"config": None, "labels": None}

    @property
    def config(self) -> dict[str, object]:
        """Settings of its newest attempt."""
        return facts_in(self._settings["config"])

    @property
    def labels(self) -> dict[str, object]:
        """Its labels, likewise."""
        return facts_in(self._settings["labels"])

    @cached_property
    def summary(self) -> dict[str, Value]:
        """Figures (``mfu_ratio``, ``last_loss``, …), the last finite value of each metric, and set summary values.

        A set value hides a metric of the same name, and a metric hides a figure.
        """
        figures = {name: self._row[name] for name in FIGURES if self._row[name] is not None}
        with self._source.noted() as reader:
            last = reader.ask(statements.last_values(statements.run_condition((self.id,)))).rows
        return {**figures, **{row["metric"]: row["value"] for row in last}, **self._annotations.summary}

    @cached_property
    def facts(self) -> RunFacts:
        """All that ``ranklake show`` shows: ranks, health, phases, incidents, …, each with its SQL."""
        with self._source.noted() as reader:
            return gather(reader.ask, self.id)

    @property
    def artifacts(self) -> Any:  # noqa: ANN401 - the caller names the library
        """A table of events of its artifacts, latest first."""
        with self._source.noted() as reader:
            return self._source.frame(
                reader.read(statements.of_run("artifacts", self.id, most=_MOST_ACTIONS)).rows, None
            )

    def history(
        self,
        metrics: str | Sequence[str] | None = None,
        *,
        rank: int | None = None,
        steps: tuple[int | None, int | None] = (None, None),
        as_: str | None = None,
    ) -> Any:  # noqa: ANN401 - likewise
        """Return its metrics by step: ``step``, ``ts`` and a column per metric.

        Parameters
        ----------
        metrics
            Names, or patterns with ``*`` and ``?``; default all.
        rank
            One rank; default: means over all ranks (sums of ``tokens`` and ``samples``, maxima of ``grad_norm``, ``lr``
            and ``memory_bytes``).
        steps
            First step, and the step before which it ends; None for no limit.
        as_
            ``arrow``, ``pandas`` or ``polars``; default: as for `ranklake.lake.runs`.

        Raises `ranklake.insight.arguments.ArgumentError`, `ranklake.insight.runs.history.NoSuchMetricError` and
        `ranklake.insight.runs.asking.UnseenError`.
        """
        with self._source.noted():
            return self._source.frame(self._history(metrics, rank, steps).table(), as_)

    def scan_history(
        self,
        metrics: str | Sequence[str] | None = None,
        *,
        rank: int | None = None,
        steps: tuple[int | None, int | None] = (None, None),
        page_rows: int = PAGE_ROWS,
        as_: str | None = None,
    ) -> Iterator[Any]:
        """Yield the same in tables of at most `page_rows` rows, each read on demand."""
        with self._source.noted():
            for page in self._history(metrics, rank, steps).pages(page_rows):
                yield self._source.frame(page, as_)

    def _history(
        self, metrics: str | Sequence[str] | None, rank: int | None, steps: tuple[int | None, int | None]
    ) -> History:
        chosen = None if metrics is None else texts("metrics", metrics, "a metric's name, or a list of them")
        if not isinstance(steps, tuple | list) or len(steps) != 2:  # noqa: PLR2004 - first and end
            raise ArgumentError(f"{reprlib.repr(steps)} is no pair", where="steps", hint=f"pass {STEPS}")
        begin, end = steps
        reader, scalars = self._source.reader, self._source.scalars
        return history(reader, self.id, chosen, rank=rank, begin=begin, end=end, scalars=scalars)


class Runs(Sequence[Run]):
    """Runs in order: a sequence of `Run`, and a table of all of them."""

    def __init__(self, source: RunSource, rows: Sequence[Row]) -> None:
        self._source, self._rows = source, rows
        self._runs = [Run(source, row) for row in rows]

    def __len__(self) -> int:
        return len(self._runs)

    @overload
    def __getitem__(self, place: int) -> Run: ...
    @overload
    def __getitem__(self, place: slice) -> "Runs": ...
    def __getitem__(self, place: int | slice) -> "Run | Runs":
        return Runs(self._source, self._rows[place]) if isinstance(place, slice) else self._runs[place]

    def __repr__(self) -> str:
        return f"<{len(self)} runs>"

    @cached_property
    def _columns(self) -> RunColumns:
        with self._source.noted() as reader:
            return run_columns(reader.ask, [run.id for run in self])

    def table(self, metrics: str | Sequence[str] = (), as_: str | None = None) -> Any:  # noqa: ANN401 - the caller names the library
        """Return one row per run: its figures, then ``config.…``, ``label.…``, ``tag.…`` and ``summary.…``.

        Parameters
        ----------
        metrics
            Metrics whose last finite values are columns, too, as ``metric.…``.
        as_
            As of `Run.history`.

        Raises `RanklakeError` for a metric that no run has.
        """
        names = [*self._rows[0]] if self._rows else ["run"]
        columns: dict[str, list[Any]] = {name: [row[name] for row in self._rows] for name in names}
        with self._source.noted() as reader:
            for metric in texts("metrics", metrics, "a metric's name, or a list of them"):
                values = values_of_runs(reader.ask, RunValue("metric", metric))
                columns[f"metric.{metric}"] = [values.get(run.id) for run in self]
        known = self._columns
        for name in known.names:
            if name not in columns:
                columns[name] = [known.value(run.id, name) for run in self]
        return self._source.frame(pa.table({name: _column(values) for name, values in columns.items()}), as_)


def find_one(source: RunSource, name: str) -> Run:
    """Return the run of a name, or of a unique beginning of it. Raises `ranklake.insight.runs.find.NoSuchRunError`."""
    with source.noted() as reader:
        run = find_run(reader.ask, text("name", name, "a run's name, the beginning of it, or its name for people"))
        rows = reader.ask(statements.summaries(f"run = {literal(run)}")).seen().rows
    return Run(source, rows[0])


def _column(values: Sequence[Value]) -> pa.Array:
    """Return values as an array: of their common type, mixed numbers as float64, else as text."""
    types = {type(value) for value in values if value is not None}
    if types == {int, float}:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    if len(types) > 1:
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    return pa.array(values)


KINDS: Final = ("arrow", "pandas", "polars")


class UnknownFrameError(RanklakeError):
    """An unknown type of table, or one whose library is not installed."""


def check_kind(kind: str) -> str:
    """Return a kind of `KINDS`. Raises `UnknownFrameError`, also where its library cannot be imported."""
    if text("as_", kind, f"one of {', '.join(KINDS)}") not in KINDS:
        raise UnknownFrameError(f"unknown kind of table {kind!r}", where="as_", hint=did_you_mean(kind, KINDS))
    if kind != "arrow":
        _library(kind)
    return kind


def as_frame(table: pa.Table, kind: str) -> Any:  # noqa: ANN401 - the caller names the library
    """Return a table as `pyarrow.Table`, `pandas.DataFrame` or `polars.DataFrame`. Raises as `check_kind`."""
    check_kind(kind)
    if kind == "pandas":
        return table.to_pandas()
    return _library(kind).from_arrow(table) if kind == "polars" else table


def _library(kind: str) -> Any:  # noqa: ANN401 - a module
    try:
        return import_module(kind)
    except ImportError as error:
        hint = f"pip install {kind}, or leave as_ out for Arrow"
        raise UnknownFrameError(f"{kind} is not installed", where=f"as_={kind!r}", hint=hint) from error
