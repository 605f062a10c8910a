"""Answers a SELECT of a person, records it in the query log, and adds messages about its inputs.

The command line, its shell and the page *Ask* of `ranklake ui` use only this module for statements.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ranklake.insight.ask import ask, query_log_entry, used_former_names
from ranklake.insight.doubts import doubt_lines, doubts
from ranklake.insight.ended_metrics import ended_in_query
from ranklake.insight.runs.asking import asking
from ranklake.lake.query.sql import Moment
from ranklake.lake.query.usage import note

if TYPE_CHECKING:
    import pyarrow as pa

    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake


def ask_logged(  # noqa: PLR0913 - what may be said of a query
    lake: "Lake",
    text: str,
    params: Mapping[str, "pa.Scalar"] | None = None,
    limit: int | None = None,
    *,
    consumer: str,
    role: "Role | None" = None,
    as_of: Moment = None,
    verify: bool = False,
    rehydrated: bool = False,
    is_logged: bool = True,
) -> tuple["pa.Table", tuple[str, ...]]:
    """Answer one SELECT as `ranklake.insight.ask.ask` does; return its rows, and messages for the user.

    Parameters
    ----------
    consumer
        Consumer, for the query log.
    is_logged
        Whether the query log is kept.

    Raises as `ask` does.
    """
    params = params or {}
    answer = ask(lake, text, params, limit, as_of=as_of, role=role, verify=verify, rehydrated=rehydrated)
    messages: list[str] = list(dict.fromkeys(name.message for name in used_former_names(answer)))
    plain: dict[str, Any] = {name: value.as_py() for name, value in params.items()}
    messages += [f"the query names {metric.note}" for metric in ended_in_query(lake, text, answer.sketch, plain, role)]
    if is_logged and (reason := note(lake.store, query_log_entry(answer, consumer, role))):
        off = "log = false under [query] in ranklake.toml switches it off"
        messages.append(f"the query log could not be written ({reason}); {off}")
    of_rows = {name for name, known in lake.contracts().items() if known.kind != "system"}  # tables with checks
    columns = {table: names for table, names in answer.sketch.columns.items() if table in of_rows}
    messages += doubt_lines(doubts(asking(lake, role), columns.keys(), columns))
    return answer.rows, tuple(messages)
