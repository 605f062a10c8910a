"""Room ``lake``; see its README.md.

import ranklake.lake

rows = ranklake.lake.sql("SELECT run, status, mfu_ratio FROM run_summary", lake="s3://bucket/lake", as_="pandas")
best = ranklake.lake.runs(where="metric:eval/loss < 2", by="metric:eval/loss", lake="s3://bucket/lake")[0]
loss = best.history("eval/loss", as_="pandas")
"""

if __name__ != "ranklake.lake":  # a bare import would make a second copy of every class in the room
    raise ImportError("import this room as ranklake.lake")

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ranklake.client import run, runs, sql
    from ranklake.lake.store.lake import Lake

__all__ = ["Lake", "run", "runs", "sql"]

_CLIENT: Final = "ranklake.client"
_MODULES: Final = {"Lake": "ranklake.lake.store.lake", "run": _CLIENT, "runs": _CLIENT, "sql": _CLIENT}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class and functions
    """Import a name of `__all__` on first use, because capture imports this room in training processes."""
    if name in _MODULES:
        globals()[name] = value = getattr(import_module(_MODULES[name]), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names of `__all__` without importing them."""
    return sorted(__all__)
