"""Deprecated, retired and sunset metrics, for notes wherever their values are shown.

the registry, the audit log ─▶ deprecated, retired, sunset ─┬─ recorded by a run?
└─ named by a query?
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ranklake.insight.runs.asking import Ask
from ranklake.insight.runs.statements import run_condition
from ranklake.lake.query.literal import literal
from ranklake.lake.rollups.life.register import lives

if TYPE_CHECKING:
    from ranklake.lake.query.roles import Role
    from ranklake.lake.query.sketch import Sketch
    from ranklake.lake.store.lake import Lake

STATUSES: Final = ("deprecated", "retired", "sunset")
_LONG: Final = ("scalars", "distributions")
_QUOTED: Final = re.compile(r"'((?:[^']|'')*)'")


@dataclass(frozen=True, slots=True)
class EndedMetric:
    """A deprecated, retired or sunset metric.

    Attributes
    ----------
    status, since
        One of `STATUSES`; the date (ISO) of the change, None if only the registry has the status.
    until
        Last date (ISO) on which it may still be recorded; None if none is set.
    replaced_by
        Its replacement, or the parts that add up to it.
    aka, column
        Other names that it has; its column, as ``steps.loss``, empty where its values are rows under its name.
    """

    metric: str
    status: str
    since: str | None
    until: str | None
    replaced_by: tuple[str, ...]
    aka: tuple[str, ...] = ()
    column: str = ""

    @property
    def note(self) -> str:
        """The note for readers of its values, as one line."""
        since = f" since {self.since}" if self.since else ""
        until = f", and may be recorded until {self.until}" if self.until and self.status == "deprecated" else ""
        rows = ", and its rows are due to go" if self.status == "sunset" else ""
        use = f"; use {' + '.join(self.replaced_by)}" if self.replaced_by else ""
        return f"{self.metric} is {self.status}{since}{until}{rows}{use}"


EndedOfRuns = Mapping[str, tuple[EndedMetric, ...]]
"""Ended metrics by the runs that recorded them."""
NO_ENDED: Final[EndedOfRuns] = MappingProxyType({})


def ended_metrics(lake: "Lake", role: "Role | None" = None) -> tuple[EndedMetric, ...]:
    """Return all ended metrics of a lake, by name.

    Replacements are hidden from roles: they may be names in other people's runs.
    """
    registry = lake.catalog.metrics()
    result = []
    for name, life in sorted(lives(lake).items()):
        if life.status in STATUSES:
            known = registry.get(name)
            since = known.deprecated if known else None
            successor = known.replaced_by if known else None
            home = known.stored_in if known else ""
            links = tuple(link.name for link in life.links) or ((successor,) if successor else ())
            result.append(
                EndedMetric(
                    metric=name,
                    status=life.status,
                    since=life.since.date().isoformat() if life.since else since,
                    until=life.until.isoformat() if life.until else None,
                    replaced_by=links if role is None else (),
                    aka=known.aka if known else (),
                    column="" if home.partition(".")[0] in _LONG else home,
                )
            )
    return tuple(result)


def ended_of_runs(ask: Ask, ended: Iterable[EndedMetric], runs: Collection[str]) -> dict[str, tuple[EndedMetric, ...]]:
    """Return the ended metrics that each run recorded; runs without any, or hidden from the role, are left out.

    Without ended metrics, no query is made; else one per table.
    """
    by_name = {name: each for each in ended for name in (each.metric, *each.aka)}
    if not by_name or not runs:
        return {}
    which, names = run_condition(tuple(sorted(runs))), ", ".join(map(literal, sorted(by_name)))
    questions = [f"SELECT run, metric FROM {table} WHERE {which} AND metric IN ({names})" for table in _LONG]  # noqa: S608 - quoted
    for each in dict.fromkeys(by_name.values()):
        table, _, column = each.column.partition(".")
        if column:
            has_value = f'{which} AND "{column}" IS NOT NULL'
            questions.append(f"SELECT run, {literal(each.metric)} AS metric FROM {table} WHERE {has_value}")  # noqa: S608 - quoted
    recorded: dict[str, dict[str, EndedMetric]] = {}
    for question in questions:  # one by one: a role may see some of the tables
        for row in ask(f"SELECT DISTINCT run, metric FROM ({question}) AS named ORDER BY run, metric").rows:  # noqa: S608 - quoted
            metric = by_name[row["metric"]]
            recorded.setdefault(row["run"], {})[metric.metric] = metric
    return {run: tuple(named[name] for name in sorted(named)) for run, named in sorted(recorded.items())}


def ended_in_query(
    lake: "Lake",
    text: str,
    used: "Sketch",
    params: Mapping[str, Any] | None = None,
    role: "Role | None" = None,
) -> tuple[EndedMetric, ...]:
    """Return the ended metrics in a query: quoted or as a parameter if it reads their rows, or by their column."""
    columns = {f"{table}.{name}" for table, names in used.columns.items() for name in names}
    reads_rows = any(f"{table}.metric" in columns for table in _LONG)
    quoted = {part.replace("''", "'") for part in _QUOTED.findall(text)} if reads_rows else set()
    quoted |= {str(value) for value in (params or {}).values()} if reads_rows else set()
    homes = {metric.stored_in for metric in lake.catalog.metrics().values()}
    if not quoted and columns.isdisjoint(homes):
        return ()
    return tuple(
        each
        for each in ended_metrics(lake, role)
        if each.column in columns or not quoted.isdisjoint((each.metric, *each.aka))
    )
