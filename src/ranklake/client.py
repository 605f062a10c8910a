"""The Python interface to a lake: `sql`, `runs` and `run`, exported by `ranklake.lake`."""

import re
import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ranklake.config import load_config
from ranklake.context import Context
from ranklake.insight.arguments import instance_of, moment, name_among, named_texts, text, texts, whole_number
from ranklake.insight.ask import ask, query_log_entry, used_former_names
from ranklake.insight.ended_metrics import ended_in_query
from ranklake.insight.runs.asking import Reader
from ranklake.insight.runs.find import STATUSES, RunConditions
from ranklake.insight.runs.listing import list_runs
from ranklake.insight.runs.run import Run, Runs, RunSource, as_frame, check_kind, find_one
from ranklake.lake.query.errors import QueryError
from ranklake.lake.query.roles import Role
from ranklake.lake.query.usage import LoggedQuery, consumer_named, note
from ranklake.lake.rollups.life.series import continuous
from ranklake.lake.store.lake import Lake

if TYPE_CHECKING:
    from ranklake.lake.query.sql import Moment

_AND: Final = re.compile(r"\s+and\s+(?=(?:metrics?|params|config|summary|summary_metrics)[:.])", re.IGNORECASE)


def sql(  # noqa: PLR0913 - those of `ask`, and the result's type
    text: str,
    lake: Lake | str | None = None,
    *,
    params: "Mapping[str, Any] | None" = None,
    limit: int | None = None,
    as_of: "Moment" = None,
    role: Role | str | None = None,
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
    params, limit, as_of, verify
        As for `ranklake.lake.query.sql.answer`.
    role
        Role whose views are queried: a name in the file ``[sql] roles``, or a loaded role.
    as_
        ``arrow`` (`pyarrow.Table`), ``pandas`` or ``polars`` (either must be installed).

    Warns (`FutureWarning`) once of each former name that the query uses. The query log gets the columns used, as for
    ``ranklake sql``. Raises as `ask`, what `Lake.open` raises, and `ranklake.insight.runs.run.UnknownFrameError`.
    """
    check_kind(as_)
    instance_of("text", text, str, "one SELECT")
    if limit is not None:
        limit = whole_number("limit", limit, least=0, right="a whole number of rows, or leave it out for all")
    lake, seen_as = _opened(lake, role, storage)
    answer = ask(lake, text, params, limit, as_of=as_of, role=seen_as, verify=verify)
    for warning in dict.fromkeys(name.message for name in used_former_names(answer)):
        warnings.warn(warning, FutureWarning, stacklevel=2)
    for metric in ended_in_query(lake, text, answer.sketch, params, seen_as):
        warnings.warn(f"the query names {metric.note}", FutureWarning, stacklevel=2)
    if lake.config.query.log:
        _warn_unnoted(note(lake.store, query_log_entry(answer, consumer_named(lake.config.query.consumer), seen_as)))
    return as_frame(answer.rows, as_)


def runs(  # noqa: PLR0913 - one parameter per condition, like the command's options
    name: str = "",
    *,
    where: str | Sequence[str] = (),
    config: Mapping[str, object] | None = None,
    labels: Mapping[str, object] | None = None,
    tags: Mapping[str, str | None] | Sequence[str] = (),
    job: str = "",
    status: str = "",
    team: str = "",
    user: str = "",
    since: datetime | None = None,
    until: datetime | None = None,
    sort: str = "newest",
    by: str = "",
    highest: bool = False,
    limit: int | None = None,
    lake: Lake | str | None = None,
    role: Role | str | None = None,
    as_: str = "arrow",
    storage: dict[str, str] | None = None,
) -> Runs:
    """Find runs, as ``ranklake runs`` does.

    Parameters
    ----------
    name
        Beginning of their names, or of their display names.
    where
        Conditions on values, such as ``metric:eval/loss < 0.5`` or, as MLflow writes them, ``metrics.loss < 0.5 and
        params.opt = 'adam'``: each a metric's last finite value, a summary value or a setting.
    config, labels
        Values of settings and labels; ``optimizer.lr`` for a nested one.
    tags
        Tags: names, or values by name.
    job, status, team, user
        Equal to these.
    since, until
        Bounds of their start (inclusive; exclusive): each a `datetime`, in UTC if it has no zone.
    sort
        An order of ``ranklake runs --sort``.
    by, highest
        A value to sort by instead, such as ``metric:eval/loss``, lowest first or highest first.
    limit
        Most runs; default all.
    lake, role, storage
        As of `sql`.
    as_
        Type of the runs' tables: ``arrow``, ``pandas`` or ``polars``.

    Runs with the tag ``archived`` are left out unless ``tags`` name it. Raises `RanklakeError` in one line.

    >>> import ranklake.lake
    >>> runs = ranklake.lake.runs(where="metric:eval/loss < 2 and config:opt = 'adam'")
    >>> runs[0].id, runs[0].config["lr"], runs[0].summary["eval/loss"]
    ('first', 0.1, 0.5)
    >>> runs[0].history("eval/loss")["eval/loss"].to_pylist()
    [3.0, 0.5]
    """
    wanted = RunConditions(
        run=text("name", name),
        job=text("job", job),
        status=status and name_among("status", status, STATUSES),
        team=text("team", team),
        user=text("user", user),
        labels=named_texts("labels", labels, "values by name: {'stage': 'prod'}"),
        settings=named_texts("config", config, "values by name: {'lr': 0.1}"),
        tags=_tags(tags),
        since=moment("since", since),
        until=moment("until", until),
        hides_archived=True,
    )
    conditions = _conditions(texts("where", where, "a condition such as 'metric:loss < 2', or a list of them"))
    text("sort", sort)
    text("by", by, "a value such as 'metric:loss'")
    instance_of("highest", highest, bool, "True or False")
    if limit is not None:
        limit = whole_number("limit", limit, least=0, right="a whole number of runs, or leave it out for all")
    source = _source(lake, role, as_, storage)
    with source.noted() as reader:
        listed = list_runs(
            reader.ask, wanted, sort=sort, where=conditions, by=by, is_highest_first=highest, limit=limit
        )
    return Runs(source, listed.rows)


def run(
    name: str,
    *,
    lake: Lake | str | None = None,
    role: Role | str | None = None,
    as_: str = "arrow",
    storage: dict[str, str] | None = None,
) -> Run:
    """Return the run of a name, or of a unique beginning of it; parameters as for `runs`.

    Raises `ranklake.insight.runs.find.NoSuchRunError`.
    """
    return find_one(_source(lake, role, as_, storage), name)


def _source(lake: Lake | str | None, role: Role | str | None, as_: str, storage: dict[str, str] | None) -> RunSource:
    check_kind(as_)
    opened, seen_as = _opened(lake, role, storage)
    query = opened.config.query
    reader = Reader(opened, seen_as, counts_use=query.log)

    def note_use() -> None:
        if reader.used:
            columns = {table: tuple(sorted(names)) for table, names in reader.used.items()}
            reader.used.clear()
            role_name = None if seen_as is None else seen_as.name
            _warn_unnoted(note(opened.store, LoggedQuery(consumer_named(query.consumer), role_name, columns, {})))

    return RunSource(reader, as_, continuous(opened) if seen_as is None else "scalars", note_use)


def _opened(
    lake: Lake | str | None, role: Role | str | None, storage: dict[str, str] | None
) -> tuple[Lake, Role | None]:
    """Return the lake and the role, by default the configured ones."""
    instance_of("lake", lake, (Lake, str, type(None)), "an open lake or its URI, or leave it out")
    instance_of("role", role, (Role, str, type(None)), "a role's name, or leave it out")
    if isinstance(lake, Lake) and not isinstance(role, str):
        return lake, role
    config = load_config()
    if not isinstance(lake, Lake):
        place = lake or config.lake.uri
        if not place:
            raise QueryError(
                "no lake configured", hint="pass lake=URI, set RANKLAKE_LAKE or write [lake] of ranklake.toml"
            )
        lake = Lake.open(place, config.storage if storage is None else storage, config.lake_config)
    return lake, Context.of(config).role(lake, role, _warn) if isinstance(role, str) else role


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)


def _warn_unnoted(reason: str) -> None:
    if reason:
        _warn(f"the query log could not be written ({reason})")


def _conditions(texts: Sequence[str]) -> list[str]:
    """Split conditions joined by ``and``.

    >>> _conditions(["metrics.loss < 2 and params.opt = 'adam'", "summary:acc>0.9"])
    ['metrics.loss < 2', "params.opt = 'adam'", 'summary:acc>0.9']
    """
    return [condition for text in texts for condition in _AND.split(text)]


def _tags(tags: Mapping[str, str | None] | Sequence[str]) -> dict[str, str]:
    right = "names, or values by name: {'stage': 'prod'}"
    if isinstance(tags, Mapping):
        return named_texts("tags", tags, right)
    return dict.fromkeys(texts("tags", tags, right), "")
