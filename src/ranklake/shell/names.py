"""Names that the shell, and the shell's completion of commands, offer: those that a role may see, and no other."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ranklake.insight.ask import ask
from ranklake.lake.contracts import load_metrics
from ranklake.lake.query.engine import engine
from ranklake.lake.query.errors import QueryError
from ranklake.printable import printable_name

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake

_MOST_RUNS: Final = 10_000
_FRESH_S: Final = 60.0
_RUNS: Final = f"SELECT run FROM run_summary GROUP BY run ORDER BY max(ts) DESC LIMIT {_MOST_RUNS}"  # noqa: S608 - ours
_FUNCTIONS: Final = "SELECT DISTINCT routine_name FROM information_schema.routines ORDER BY 1"


def run_names(lake: "Lake", role: "Role | None") -> tuple[str, ...]:
    """Return names of runs, the newest first, as a role sees them; none where it sees no summaries."""
    try:
        result = ask(lake, _RUNS, role=role).rows["run"].to_pylist()
    except QueryError:
        if role is None:
            raise
        return ()
    return printable_names(one for one in result if one is not None)


def printable_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return names without those that a terminal would not show as they are."""
    return tuple(one for one in names if one == printable_name(one))


@dataclass(slots=True)
class Names:
    """Names that may be completed.

    Attributes
    ----------
    tables
        Those that the role may ask, by name, with the columns that it sees.
    metrics
        Registered metrics.
    """

    tables: dict[str, tuple[str, ...]]
    metrics: tuple[str, ...]
    _ask_runs: Callable[[], tuple[str, ...]]
    _runs: tuple[float, tuple[str, ...]] | None = None
    _functions: tuple[str, ...] = field(default=())

    @property
    def runs(self) -> tuple[str, ...]:
        """Names of runs, the newest first: asked when first needed, and again where the answer is a minute old."""
        now = time.monotonic()
        if self._runs is None or now - self._runs[0] > _FRESH_S:
            self._runs = now, self._ask_runs()
        return self._runs[1]

    @property
    def functions(self) -> tuple[str, ...]:
        """Functions of the engine: asked when first needed."""
        if not self._functions:
            result = engine(threads=1).sql(_FUNCTIONS).to_arrow_table()
            self._functions = tuple(result["routine_name"].to_pylist())
        return self._functions


def names_of(lake: "Lake", role: "Role | None", contracts: "Mapping[str, Contract]") -> Names:
    """Return the names of a lake, as a role sees them. The lake is not asked before names of runs are needed."""
    tables = {
        name: tuple(one.names if role is None else role.columns(one))
        for name, one in contracts.items()
        if role is None or role.sees(name)
    }
    return Names(tables, tuple(load_metrics()), lambda: run_names(lake, role))
