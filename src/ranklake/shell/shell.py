"""The shell: asks what is typed, statement by statement, and shows what comes back, until somebody leaves."""

import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click
import pyarrow as pa

from ranklake.errors import RanklakeError
from ranklake.redaction.redact import redact
from ranklake.shell.commands import carry_out
from ranklake.shell.interruptible import interruptible
from ranklake.shell.statements import is_whole, statements
from ranklake.views.result_set import as_table, as_vertical
from ranklake.views.tell import tell

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.query.roles import Role

_LEAVING: Final = {"quit", "exit"}
_HELPING: Final = {"help", "help;", "?"}


def is_complete(text: str) -> bool:
    """Return whether Enter ends what is typed: a command, a whole statement, or an empty line after one."""
    line = text.strip()
    return not line or line.startswith("\\") or line in _LEAVING | _HELPING or is_whole(text) or text.endswith("\n")


class Shell:
    """What happens to lines, wherever they come from.

    Parameters
    ----------
    answer
        Answers one SELECT, with what it has to say of it.
    page
        Shows a long text, in a pager.

    Attributes
    ----------
    contracts, role
        The tables that are there, and the role that asks.
    times, is_vertical, pages, is_done
        Whether durations are reported, rows stand as blocks, long results go to the pager, and somebody left.
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
        """Take what `read` returns until it raises `EOFError`; a `KeyboardInterrupt` ends a line or a statement."""
        while not self.is_done:
            with suppress(KeyboardInterrupt):
                self._run(read)

    def _run(self, read: Callable[[], str]) -> None:
        """Take lines until there are no more; whoever presses Ctrl-C twice is back here from wherever it was."""
        while not self.is_done:
            try:
                self.take(read())
            except EOFError:
                self.is_done = True

    def take(self, text: str) -> None:
        """Carry out what was typed: a command, or statements. Errors are reported, and are no end."""
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
        """Say something, a line each."""
        tell(*lines)

    def show(self, rows: pa.Table) -> None:
        """Show rows, in a pager where they need more than the terminal has."""
        text = (as_vertical if self.is_vertical else as_table)(rows)
        lines = text.split("\n")
        size = shutil.get_terminal_size()
        if self.pages and (len(lines) >= size.lines or max(map(len, lines)) > size.columns):
            self._page(text)
        else:
            click.echo(text)  # noqa: TID251 - a document, as it is

    def _ask(self, statement: str) -> None:
        began = time.perf_counter()
        rows = interruptible(lambda: self._answer(statement))
        took = time.perf_counter() - began
        self.show(rows)
        if self.times:
            self.tell(f"({took:.3f} s)")
