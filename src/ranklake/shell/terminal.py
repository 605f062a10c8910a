"""The shell at a terminal: lines are edited, completed and remembered by prompt_toolkit, long results go to a pager."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.output import create_output

from ranklake.errors import RanklakeError
from ranklake.redaction.redact import redact_uri
from ranklake.shell.commands import COMMANDS
from ranklake.shell.history import history
from ranklake.shell.names import Names, candidates, names_of
from ranklake.shell.shell import Shell, is_complete
from ranklake.views.tell import tell

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake

_MOST_SHOWN: Final = 200
_LESS: Final = "-FSX"
"""Leave where all fits, cut long lines, and leave the text on the screen."""


class _Completer(Completer):
    """Completes what stands before the cursor by names; what cannot be asked now completes to nothing."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Yield what may come next."""
        del complete_event
        result = candidates(document.text_before_cursor, document.text_after_cursor, self._names, tuple(COMMANDS))
        try:
            for _, (word, length) in zip(range(_MOST_SHOWN), result, strict=False):
                yield Completion(word, start_position=-length)
        except (RanklakeError, OSError):  # the lake went away: the next statement says so
            return


def interact(
    lake: "Lake", contracts: "Mapping[str, Contract]", role: "Role | None", answer: Callable[[str], pa.Table]
) -> None:
    """Run the shell on this terminal until somebody leaves."""
    kept, why = history(None if role is None else role.name, _guarded(contracts))
    if why:
        tell(why, err=True)
    session: PromptSession[str] = PromptSession(
        completer=_Completer(names_of(lake, role, contracts)),
        complete_in_thread=True,
        complete_while_typing=False,
        history=kept,
        multiline=Condition(lambda: not is_complete(session.default_buffer.text)),
        prompt_continuation=lambda width, *_: "… ".rjust(width),
        output=create_output(getattr(sys.stdout, "rich_proxied_file", sys.stdout)),  # to send what moves the cursor
    )
    asks = "" if role is None else f" as {role.name}"
    tell(f"{redact_uri(lake.uri)}{asks}: {len(contracts):,} tables; \\? for help, Ctrl-D to leave")
    prompt = f"ranklake{asks}> "
    os.environ.setdefault("LESS", _LESS)
    Shell(answer, contracts, role).run(lambda: session.prompt(prompt))


def _guarded(contracts: "Mapping[str, Contract]") -> frozenset[str]:
    """Return names of columns whose values the history does not keep: all but the operational ones."""
    every = (column for one in contracts.values() for column in one.columns)
    return frozenset(column.name.lower() for column in every if column.class_ != "operational")
