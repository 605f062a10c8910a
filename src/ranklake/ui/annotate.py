"""The Annotate page: names, tags, notes, groups and archiving of runs, as rows like those of `ranklake tag`.

Rows go to the spool, and the next ingest stores them in the lake.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from ranklake.capture.common.values import BadValueError
from ranklake.capture.provenance.annotations import PERSON, annotation
from ranklake.insight.runs import statements
from ranklake.insight.runs.annotations import ARCHIVED, annotations_of
from ranklake.insight.runs.asking import QueriedFacts, UnseenError
from ranklake.insight.runs.report import RunQuestions
from ranklake.lake.query.literal import literal
from ranklake.lake.query.roles import Role
from ranklake.ui.guard import ForbiddenError, FormTokens
from ranklake.ui.view import UnfitViewError
from ranklake.ui.viewers import Viewer
from ranklake.views.html import run_pages
from ranklake.views.html.shell import Page

ANNOTATE: Final = "annotate"
ANNOTATE_HOME: Final = f"{ANNOTATE}/index.html"
MOST_BYTES: Final = 64 * 1024
"""Size of a form."""
_GROUP: Final = "group"
_TABLE: Final = "annotations"
_MOST_HISTORY: Final = 200
_MOST_SENT: Final = 1_000
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class SentAnnotation:
    """An annotation that was sent to the spool and may not be in the lake yet; `text` is for people."""

    run: str
    author: str
    text: str


class Annotator:
    """Takes annotations of runs from viewers.

    Parameters
    ----------
    send
        Sends rows of ``annotations`` about a run to the spool.
    tokens
        Protects the server's forms.
    """

    def __init__(self, send: Callable[[str, Rows], None], tokens: FormTokens | None = None) -> None:
        self._send, self._tokens = send, tokens or FormTokens()
        self._sent: list[SentAnnotation] = []
        self._lock = threading.Lock()

    def take(self, questions: RunQuestions, viewer: Viewer, body: bytes) -> str:
        """Send the rows of a form to the spool; return the address of the run's page of annotations.

        Raises `ForbiddenError`, `UnfitViewError`, and `ranklake.insight.runs.asking.UnseenError` for a run that is not
        there or that the viewer does not see.
        """
        if len(body) > MOST_BYTES:
            raise UnfitViewError("the form is too long", where="annotate")
        form = dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=20))
        self._tokens.check(viewer, form.get("token", ""))
        run = form.get("run", "")
        refuse_unseen(questions, viewer.role, run)
        try:
            rows = rows_of(form)
        except BadValueError as error:
            raise UnfitViewError(str(error), where="annotate", hint="write a tag, a name or a note") from error
        self._send(run, [row | ({"author": viewer.name} if viewer.name else {}) for row in rows])
        with self._lock:
            del self._sent[: max(len(self._sent) - _MOST_SENT, 0)]
            self._sent += [SentAnnotation(run, viewer.name, _row_text(row)) for row in rows]
        return f"index.html?{urlencode({'run': run})}"

    def page(self, questions: RunQuestions, viewer: Viewer, run: str) -> Page:
        """Return the page of a run's annotations. Raises `ranklake.insight.runs.asking.UnseenError`."""
        refuse_unseen(questions, viewer.role, run)
        breadcrumbs = ("Runs", run_pages.HOME), (run, run_pages.href(run))
        return Page(
            ANNOTATE_HOME, "Annotate", "annotate.html", lambda: self._facts(questions, viewer, run), "", breadcrumbs
        )

    def _facts(self, questions: RunQuestions, viewer: Viewer, run: str) -> Mapping[str, Any]:
        history = _history(questions, run)
        current = annotations_of(run, questions.ask(statements.annotations(statements.run_condition((run,)))).rows)
        known = {_row_text(row) for row in history.rows}
        with self._lock:
            sent = [each.text for each in self._sent if each.run == run and each.author == viewer.name]
        return {
            "run": run,
            "token": self._tokens.token(viewer),
            "author": viewer.name,
            "name": current.name,
            "tags": [(key, key if value is None else f"{key}={value}") for key, value in current.tags.items()],
            "group": current.tags.get(_GROUP) or "",
            "is_archived": ARCHIVED in current.tags,
            "archived": ARCHIVED,
            "waiting": [text for text in dict.fromkeys(sent) if text not in known],
            "history": [(row["ts"], _row_text(row), row["source"], row.get("author")) for row in history.rows],
            "has_authors": questions.is_for_role,
        }


def rows_of(form: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the rows of ``annotations`` for a form. Raises `BadValueError`, `UnfitViewError`."""
    action, value = form.get("action", ""), form.get("value", "").strip()
    key, sign, tag_value = value.partition("=")
    row_by_action = {
        "tag": lambda: annotation("tag", key.strip(), tag_value.strip() if sign else None, source=PERSON),
        "untag": lambda: annotation("tag", value, removed=True, source=PERSON),
        "name": lambda: annotation("name", value=value, source=PERSON),
        "note": lambda: annotation("note", value=value, source=PERSON),
        "group": lambda: annotation("tag", _GROUP, value or None, removed=not value, source=PERSON),
        "archive": lambda: annotation("tag", ARCHIVED, source=PERSON),
        "restore": lambda: annotation("tag", ARCHIVED, removed=True, source=PERSON),
    }
    if action not in row_by_action:
        raise UnfitViewError(f"{action[:40]!r} is not an action on a run", where="action")
    return [row_by_action[action]()]


def refuse_unseen(questions: RunQuestions, role: Role | None, run: str) -> None:
    """Raise unless a role sees a run and may read annotations: writing needs the right to read."""
    if role is not None:
        rights = role.sees(_TABLE) and questions.ask(f"SELECT kind, key, value FROM {_TABLE} LIMIT 1")  # noqa: S608 - a constant
        if not rights or rights.reason:
            raise ForbiddenError(f"role {role.name} does not see annotations, so it cannot write them")
    if not questions.ask(f"SELECT run FROM run_summary WHERE run = {literal(run)} LIMIT 1").seen().rows:  # noqa: S608 - quoted
        raise UnseenError("no such run", where=run)


def _history(questions: RunQuestions, run: str) -> QueriedFacts:
    """Return the annotations of a run, the latest first; notes and authors as a role sees them."""
    more_columns = ", text, author" if questions.is_for_role else ""
    source_sql = f"FROM {_TABLE} WHERE run = {literal(run)} AND kind <> 'mark' ORDER BY ts DESC LIMIT {_MOST_HISTORY}"
    answer = questions.ask(f"SELECT ts, kind, key, value, number, removed, source{more_columns} {source_sql}")
    if answer.reason and more_columns:
        return questions.ask(f"SELECT ts, kind, key, value, number, removed, source {source_sql}")
    return answer


def _row_text(row: Mapping[str, Any]) -> str:
    """Return an annotation as text for people."""
    kind, key, value = row["kind"], row.get("key") or "", row.get("value")
    if kind == "note":
        return f"note: {row.get('text') or 'not shown'}"
    if kind == "name":
        return f"name {value}"
    if row.get("removed"):
        return f"{kind} {key} removed"
    shown = row.get("number") if value is None and row.get("number") is not None else value
    return f"{kind} {key}" if shown is None else f"{kind} {key}={shown}"
