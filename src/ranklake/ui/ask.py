"""The page Ask: SQL queries of viewers, run as by `ranklake sql`, with completion."""

import hashlib
import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.datastructures import QueryParams

from ranklake.context import Context
from ranklake.lake.query.roles import Role
from ranklake.lake.query.usage import consumer_named
from ranklake.lake.store.lake import Lake
from ranklake.shell.names import Names, candidates, names_of
from ranklake.ui.guard import FormTokens
from ranklake.ui.query_pool import QueryLimits, QueryPool, ViewerQuery
from ranklake.ui.query_process import FORMS
from ranklake.ui.view import UnfitViewError
from ranklake.ui.viewers import Viewer
from ranklake.views.html.shell import Page

ASK: Final = "ask"
ASK_HOME: Final = f"{ASK}/index.html"
ASK_ROWS: Final = f"{ASK}/rows"
ASK_WORDS: Final = f"{ASK}/words.json"
MOST_SQL_BYTES: Final = 256 * 1024
"""Size of a form with a statement."""
CHARTS: Final = ("", "line", "bar", "scatter")
_MOST_WORDS: Final = 12
_MOST_TEXT: Final = 2_000
_MOST_WORD_TEXT: Final = 1_000
_SPACES: Final = re.compile(r"\s+")
_NAMES_S: Final = 60.0
_MOST_ROLES: Final = 100
_DEFAULT_SQL: Final = "SELECT run, status, steps, last_loss\nFROM run_summary\nORDER BY ts DESC\nLIMIT 20"


@dataclass(frozen=True, slots=True)
class Question:
    """Content of an address of the page: a statement, and how its answer is plotted."""

    sql: str = ""
    chart: str = ""
    x: str = ""
    y: str = ""
    colour: str = ""

    @classmethod
    def of(cls, asked: QueryParams) -> "Question":
        """Return the question of an address. Raises `UnfitViewError`."""
        texts = {name: asked.get(name, "") for name in ("sql", "chart", "x", "y", "colour")}
        if texts["chart"] not in CHARTS:
            raise UnfitViewError(f"no chart {texts['chart'][:40]!r}", where="chart", hint="line, bar or scatter")
        if len(texts["sql"]) > MOST_SQL_BYTES or any(len(texts[name]) > _MOST_TEXT for name in ("x", "y", "colour")):
            raise UnfitViewError("the text is too long", where="sql, x, y or colour")
        return cls(**texts)


class Asker:
    """Answers SQL statements of viewers.

    Parameters
    ----------
    context
        The configuration, and the lake.
    tokens
        Protects the server's forms.
    """

    def __init__(self, context: Context, tokens: FormTokens) -> None:
        self._context, self._tokens = context, tokens
        self._limits = QueryLimits(context.config.ui.query_s, context.config.ui.query_memory_bytes)
        open_lake = partial(Lake.open, context.lake_uri, context.config.storage, context.lake_config)
        self.pool = QueryPool(open_lake, self._limits)
        self._names: OrderedDict[str, tuple[float, Names]] = OrderedDict()
        self._lock = threading.Lock()

    def page(self, viewer: Viewer, question: Question) -> Page:
        """Return the page."""
        return Page(ASK_HOME, "Ask", "ask.html", lambda: self._facts(viewer, question), "")

    def _facts(self, viewer: Viewer, question: Question) -> Mapping[str, Any]:
        who = f"{self._context.lake_uri}\0{viewer.name}\0{'' if viewer.role is None else viewer.role.name}"
        return {
            "question": question,
            "sql": question.sql or _DEFAULT_SQL,
            "token": self._tokens.token(viewer),
            "history": hashlib.sha256(who.encode("utf-8", "replace")).hexdigest()[:16],
            "chart_kinds": CHARTS,
            "limit_s": self._limits.time_s,
        }

    def query(self, viewer: Viewer, body: bytes) -> ViewerQuery:
        """Return the query in a form. Raises `UnfitViewError`, and `ForbiddenError` for a foreign form."""
        form = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=20))
        self._tokens.check(viewer, form.get("token", ""))
        kind = form.get("form", "json")
        if kind not in FORMS:
            raise UnfitViewError(f"no form {kind[:40]!r}", where="form", hint=", ".join(FORMS))
        config = self._context.config.query
        consumer = viewer.name or consumer_named(config.consumer)
        return ViewerQuery(form.get("sql", ""), viewer.role, consumer, kind, config.log)

    def words(self, viewer: Viewer, asked: QueryParams) -> bytes:
        """Return completions between two texts, each with the number of characters it replaces, as JSON."""
        # The patterns of completion are slow on long runs of spaces.
        before = _SPACES.sub(" ", asked.get("before", ""))[-_MOST_WORD_TEXT:]
        after = _SPACES.sub(" ", asked.get("after", ""))[:_MOST_WORD_TEXT]
        words = candidates(before, after, self._names_of(viewer.role), ())
        return json.dumps(list(islice(dict(words).items(), _MOST_WORDS))).encode()

    def _names_of(self, role: Role | None) -> Names:
        key = repr(role)
        with self._lock:
            at, names = self._names.get(key, (0.0, None))
            if names is None or time.monotonic() - at > _NAMES_S:
                lake = self._context.open_lake()
                names = names_of(lake, role, lake.contracts())
                self._names[key] = time.monotonic(), names
                while len(self._names) > _MOST_ROLES:
                    self._names.popitem(last=False)
            return names
