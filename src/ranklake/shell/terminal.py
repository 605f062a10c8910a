"""The interactive shell: reads, completes, stores and runs statements."""

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import click
import pyarrow as pa
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.output import create_output

from ranklake.errors import RanklakeError
from ranklake.redaction.redact import redact, redact_uri
from ranklake.shell.commands import COMMANDS, carry_out
from ranklake.shell.names import Names, candidates, names_of
from ranklake.shell.statements import interruptible, is_whole, statements
from ranklake.views.result_set import as_table, as_vertical
from ranklake.views.tell import tell

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake


_TEXTS: Final = re.compile(r"'(?:[^']|'')*(?:'|\Z)")
_WORD: Final = re.compile(r"\w+")
_MOST_BYTES: Final = 512 * 1024


class PrivateHistory(FileHistory):
    """A history in a file that only its owner can read.

    Parameters
    ----------
    path
        The file; created with its folder if necessary. Raises `OSError`.
    guarded
        Names of columns, in lower case: texts in statements with one of them are not stored.
    """

    def __init__(self, path: Path, guarded: frozenset[str]) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "r+b") as file:
            os.fchmod(file.fileno(), 0o600)
            _shorten(path, file.read())
        self._guarded = guarded
        super().__init__(str(path))

    def store_string(self, string: str) -> None:
        """Store a statement without guarded texts."""
        super().store_string(self.private_text(string))

    def private_text(self, text: str) -> str:
        """Return the storable form of a statement."""
        if self._guarded & {word.lower() for word in _WORD.findall(_TEXTS.sub("", text))}:
            text = _TEXTS.sub("'…'", text)
        return str(redact(text))


def _shorten(path: Path, data: bytes) -> None:
    """Drop the older half of a large history; entries begin with a line ``# time``."""
    if len(data) <= _MOST_BYTES:
        return
    cut = data.find(b"\n\n#", len(data) // 2)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(data[cut + 1 :] if cut >= 0 else b"")
    scratch.replace(path)


def history_file(role: str | None) -> Path:
    """Return the path of a role's history: below ``XDG_STATE_HOME``, or ``~/.local/state``."""
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    name = "sql-history" if role is None else f"sql-history-{quote(role, safe='')}"
    return base / "ranklake" / name


def history(role: str | None, guarded: Iterable[str]) -> tuple[History, str]:
    """Return the history of a role, and, if it is not stored, the reason."""
    try:
        return PrivateHistory(history_file(role), frozenset(guarded)), ""
    except (OSError, RuntimeError) as error:  # no home is a RuntimeError
        reason = error.strerror if isinstance(error, OSError) else "no home folder"
        return InMemoryHistory(), f"the history is not kept: {reason}"


_LEAVING: Final = {"quit", "exit"}
_HELPING: Final = {"help", "help;", "?"}


def is_complete(text: str) -> bool:
    """Whether Enter submits the text: a command, a complete statement, or an empty line."""
    line = text.strip()
    return not line or line.startswith("\\") or line in _LEAVING | _HELPING or is_whole(text) or text.endswith("\n")


class Shell:
    """Runs lines, independent of their source.

    Parameters
    ----------
    answer
        Answers one SELECT, with messages.
    page
        Shows a long text in a pager.

    Attributes
    ----------
    contracts, role
        Tables, and the role of the user.
    times, is_vertical, pages, is_done
        Whether to print durations, to print rows as blocks, and to use the pager; and whether the shell ended.
    """

    def __init__(
        self,
        answer: Callable[[str], pa.Table],
        contracts: "Mapping[str, Contract]",
        role: "Role | None",
        page: Callable[[str], None] = click.echo_via_pager,
    ) -> None:
        self._answer, self._page = answer, page
        self.contracts, self.role = contracts, role
        self.times = self.is_vertical = self.is_done = False
        self.pages = True

    def run(self, read: Callable[[], str]) -> None:
        """Run lines from `read` until it raises `EOFError`; a `KeyboardInterrupt` aborts a line or a statement."""
        while not self.is_done:
            with suppress(KeyboardInterrupt):
                self._run(read)

    def _run(self, read: Callable[[], str]) -> None:
        """Run lines until the end; a second Ctrl-C returns here from anywhere."""
        while not self.is_done:
            try:
                self.take(read())
            except EOFError:
                self.is_done = True

    def take(self, text: str) -> None:
        """Run a command or statements. Errors are printed, and do not end the shell."""
        line = text.strip()
        try:
            if line in _LEAVING:
                self.is_done = True
            elif line in _HELPING:
                carry_out(self, "\\?")
            elif line.startswith("\\"):
                carry_out(self, line)
            else:
                for statement in statements(text):
                    self._ask(statement)
        except KeyboardInterrupt:
            self.tell("interrupted; what was asked stops when you leave, if it has not ended before")
        except (RanklakeError, OSError) as error:
            tell(redact(" ".join(str(error).split())), err=True)

    def tell(self, *lines: str) -> None:
        """Print lines."""
        tell(*lines)

    def show(self, rows: pa.Table) -> None:
        """Show rows, in a pager if they exceed the terminal."""
        text = (as_vertical if self.is_vertical else as_table)(rows)
        lines = text.split("\n")
        size = shutil.get_terminal_size()
        if self.pages and (len(lines) >= size.lines or max(map(len, lines)) > size.columns):
            self._page(text)
        else:
            click.echo(text)  # noqa: TID251 - a document, printed unchanged

    def _ask(self, statement: str) -> None:
        began = time.perf_counter()
        rows = interruptible(lambda: self._answer(statement))
        took = time.perf_counter() - began
        self.show(rows)
        if self.times:
            self.tell(f"({took:.3f} s)")


_MOST_SHOWN: Final = 200
_LESS: Final = "-FSX"
"""Options of less: exit if all fits, cut long lines, and keep the text on the screen."""


class _Completer(Completer):
    """Completes the word before the cursor; without completions if the lake cannot be queried."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Yield completions."""
        del complete_event
        result = candidates(document.text_before_cursor, document.text_after_cursor, self._names, tuple(COMMANDS))
        try:
            for _, (word, length) in zip(range(_MOST_SHOWN), result, strict=False):
                yield Completion(word, start_position=-length)
        except (RanklakeError, OSError):  # the lake is unreachable: the next statement reports it
            return


def interact(
    lake: "Lake", contracts: "Mapping[str, Contract]", role: "Role | None", answer: Callable[[str], pa.Table]
) -> None:
    """Run the shell on this terminal until its user leaves."""
    own_history, reason = history(None if role is None else role.name, _guarded(contracts))
    if reason:
        tell(reason, err=True)
    session: PromptSession[str] = PromptSession(
        completer=_Completer(names_of(lake, role, contracts)),
        complete_in_thread=True,
        complete_while_typing=False,
        history=own_history,
        multiline=Condition(lambda: not is_complete(session.default_buffer.text)),
        prompt_continuation=lambda width, *_: "… ".rjust(width),
        output=create_output(getattr(sys.stdout, "rich_proxied_file", sys.stdout)),  # to write control sequences
    )
    asks = "" if role is None else f" as {role.name}"
    tell(f"{redact_uri(lake.uri)}{asks}: {len(contracts):,} tables; \\? for help, Ctrl-D to leave")
    prompt = f"ranklake{asks}> "
    os.environ.setdefault("LESS", _LESS)
    Shell(answer, contracts, role).run(lambda: session.prompt(prompt))


def _guarded(contracts: "Mapping[str, Contract]") -> frozenset[str]:
    """Return names of columns whose values are not stored in the history: all except operational ones."""
    columns = (column for contract in contracts.values() for column in contract.columns)
    return frozenset(column.name.lower() for column in columns if column.class_ != "operational")
