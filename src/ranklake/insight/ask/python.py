"""SQL from Python: `ranklake.lake.sql`."""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ranklake.errors import did_you_mean
from ranklake.insight.ask.ask import ask, used
from ranklake.lake.query.errors import QueryError
from ranklake.lake.store.store import Lake

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranklake.lake.query.roles import Role
    from ranklake.lake.query.sql import Moment


def sql(  # noqa: PLR0913 - those of `ask`, and what to give
    text: str,
    lake: Lake | str | None = None,
    *,
    params: "Mapping[str, Any] | None" = None,
    limit: int | None = None,
    as_of: "Moment" = None,
    role: "Role | None" = None,
    verify: bool = False,
    as_: str = "arrow",
    storage: dict[str, str] | None = None,
) -> Any:  # noqa: ANN401 - the caller names the library
    """Answer one SELECT from Python, as `ranklake.lake.sql`.

    Parameters
    ----------
    lake
        An open lake or its URI; by default the configured one: ``RANKLAKE_LAKE``, else ``[lake]`` of ``ranklake.toml``.
    storage
        Options of the lake's store; by default ``[storage]`` of ``ranklake.toml``.
    params, limit, as_of, role, verify
        As for `ranklake.lake.query.sql.answer`.
    as_
        ``arrow`` (`pyarrow.Table`), ``pandas`` or ``polars`` (either must be installed).

    Warns (`FutureWarning`) once of each former name that the query uses. Raises as `ask`, and what `Lake.open` raises.
    """
    if as_ not in {"arrow", "pandas", "polars"}:
        raise QueryError(f"unknown kind of table {as_!r}", hint=did_you_mean(as_, ("arrow", "pandas", "polars")))
    if not isinstance(lake, Lake):
        lake = _configured(lake, storage)
    found = ask(lake, text, params, limit, as_of=as_of, role=role, verify=verify)
    for said in dict.fromkeys(one.said for one in used(found)):
        warnings.warn(said, FutureWarning, stacklevel=2)
    rows = found.rows
    if as_ == "pandas":
        return rows.to_pandas()
    if as_ == "polars":
        import polars as pl

        return pl.from_arrow(rows)
    return rows


def _configured(uri: str | None, storage: dict[str, str] | None) -> Lake:
    """Open a lake as commands do, by the package's configuration, which stands above this room."""
    config = import_module("ranklake.config").load_config()
    place = uri or config.lake.uri
    if not place:
        raise QueryError("no lake configured", hint="pass lake=URI, set RANKLAKE_LAKE or write [lake] of ranklake.toml")
    return Lake.open(place, config.storage if storage is None else storage, config.lake_config)
