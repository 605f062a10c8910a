r"""Commands of the shell, which begin with a backslash."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from ranklake.errors import RanklakeError, did_you_mean

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.query.roles import Role


class Shell(Protocol):
    """The shell's interface for commands: `ranklake.shell.terminal.Shell`."""

    contracts: "Mapping[str, Contract]"
    role: "Role | None"
    times: bool
    is_vertical: bool
    pages: bool
    is_done: bool

    def tell(self, *lines: str) -> None:
        """Print lines."""

    def show(self, rows: pa.Table) -> None:
        """Show rows."""


class ShellError(RanklakeError):
    """An unknown command of the shell, or one with wrong arguments."""


def describe(contracts: "Mapping[str, Contract]", role: "Role | None", name: str) -> pa.Table:
    """Return the tables, or the columns of one, as a role sees them. Raises `ShellError`."""
    seen = {key: contract for key, contract in contracts.items() if role is None or role.sees(key)}
    if not name:
        facts = {
            "table": list(seen),
            **{key: [getattr(table, key) for table in seen.values()] for key in ("kind", "summary")},
        }
        return pa.table({key: pa.array(values, pa.string()) for key, values in facts.items()})
    if name not in seen:
        raise ShellError(f"no table {name!r}", where="\\d", hint=did_you_mean(name, seen))
    contract = seen[name]
    sights = None if role is None else [sight for sight in role.sights(contract) if not sight.is_hidden]
    columns = contract.columns if sights is None else [sight.column for sight in sights]
    result = {
        "column": [column.name for column in columns],
        "type": [column.type for column in columns],
        "unit": [column.unit or "" for column in columns],
        "class": [column.class_ for column in columns],
        **({} if sights is None else {"seen": [sight.visibility for sight in sights]}),
        "meaning": [" ".join(column.doc.split()) for column in columns],
    }
    return pa.table({key: pa.array(values, pa.string()) for key, values in result.items()})


def _describe(shell: Shell, name: str) -> None:
    shell.show(describe(shell.contracts, shell.role, name.rstrip(";")))


def _timing(shell: Shell, argument: str) -> None:
    shell.times = _switch("\\timing", shell.times, argument)
    shell.tell(f"timing is {_switch_text(shell.times)}")


def _vertical(shell: Shell, argument: str) -> None:
    shell.is_vertical = _switch("\\x", shell.is_vertical, argument)
    shell.tell(f"vertical mode is {_switch_text(shell.is_vertical)}")


def _pager(shell: Shell, argument: str) -> None:
    shell.pages = _switch("\\pager", shell.pages, argument)
    shell.tell(f"the pager is {_switch_text(shell.pages)}")


def _help(shell: Shell, argument: str) -> None:
    del argument
    shell.tell("A statement ends with ; or with an empty line. Tab completes, Ctrl-R searches what was typed.")
    shell.tell(*(f"{usage:<18}{meaning}" for usage, meaning, _ in COMMANDS.values()))


def _quit(shell: Shell, argument: str) -> None:
    del argument
    shell.is_done = True


def _switch_text(state: object) -> str:
    return "on" if state else "off"


def _switch(command: str, before: bool, argument: str) -> bool:
    if not argument:
        return not before
    if argument not in {"on", "off"}:
        raise ShellError(f"{argument!r} is neither on nor off", where=command, hint="write on, off or nothing")
    return argument == "on"


COMMANDS: Final[Mapping[str, tuple[str, str, Callable[[Shell, str], None]]]] = MappingProxyType(
    {
        "\\d": ("\\d [TABLE]", "tables; of one, its columns with types, units and meanings", _describe),
        "\\timing": ("\\timing [on|off]", "tell how long each statement took", _timing),
        "\\x": ("\\x [on|off]", "a line a column instead of a line a row", _vertical),
        "\\pager": ("\\pager [on|off]", "show what is longer or wider than the terminal in $PAGER", _pager),
        "\\?": ("\\?", "this help", _help),
        "\\q": ("\\q", "leave, as Ctrl-D does", _quit),
    }
)
"""Commands: syntax, summary and function of each."""


def carry_out(shell: Shell, line: str) -> None:
    """Run a command. Raises `ShellError` for an unknown one."""
    name, _, argument = line.strip().partition(" ")
    if name not in COMMANDS:
        raise ShellError(f"no command {name}", hint="\\? lists them")
    COMMANDS[name][2](shell, argument.strip())
