"""Options of commands whose step somebody answers for, and signs where the lake takes signatures."""

from functools import wraps
from typing import Any, Final

import click

from ranklake.commands.options import Command
from ranklake.lake.store.lake_config import COMMAND, UNSIGNED
from ranklake.lake.store.store import Lake
from ranklake.retention.proposals.identities import Signing, name_of
from ranklake.retention.proposals.lifecycle import statement
from ranklake.retention.proposals.modes import UNSIGNED_NOTE
from ranklake.retention.proposals.proposals import AnyKind
from ranklake.views.tell import tell

_KEY: Final = "SSH key that signs: a private one, or a .pub of one in the agent; default: [approvals] key."
_SIGNED: Final = "Statement that was signed elsewhere; the signature is beside it, in FILE.sig."
_STATEMENT: Final = "Print what --by would sign, and do nothing: for ssh-keygen on another machine."


class Told:
    """How a command was told to sign, and what it is about."""

    def __init__(self, key: str | None, signed: str | None, *, text_only: bool) -> None:
        self.signing, self.text_only = Signing(key or "", signed or ""), text_only

    def is_for(self, lake: Lake, by: str | None) -> bool:
        """Say whether anybody is named, by whatever means: for steps that go without, too."""
        section, signing = lake.config.approvals, self.signing
        return bool(by or signing.key or signing.signed or section.key or section.mode == COMMAND)

    def who(self, lake: Lake, what: str, by: str | None, *, login: bool = True, elsewhere: bool = True) -> str:
        """Return the name of whoever does it; see `ranklake.retention.proposals.identities.name_of`."""
        if by is not None and not by.strip():
            raise click.BadParameter("the name is empty", param_hint="--by")
        return name_of(lake, what, by, self.signing, login=login, elsewhere=elsewhere)

    def print_statement(
        self, lake: Lake, kind: AnyKind, name: str, step: str, by: str | None, reason: str | None = None
    ) -> None:
        """Print what somebody would sign. Raises `click.UsageError` where nobody is named."""
        click.echo(statement(lake, kind, name, step, self.signer(by), reason), nl=False)  # noqa: TID251 - a document, as it is

    @staticmethod
    def signer(by: str | None) -> str:
        """Return the name of whoever will sign a statement. Raises `click.UsageError` where nobody is named."""
        if not by or not by.strip():
            raise click.UsageError("--statement needs --by NAME: whose key will sign it")
        return " ".join(by.split())


def signing_options(command: Command) -> Command:
    """Declare ``--key``, ``--signed`` and ``--statement``, which come as one argument, ``told``."""

    @click.option("--key", metavar="PATH", help=_KEY)
    @click.option("--signed", metavar="FILE", help=_SIGNED)
    @click.option("--statement", "text_only", is_flag=True, help=_STATEMENT)
    @wraps(command)
    def run(*args: Any, key: str | None, signed: str | None, text_only: bool, **options: Any) -> Any:  # noqa: ANN401 - the command's own
        if key and signed:
            raise click.UsageError("--key signs now, and --signed was signed already: give one of them")
        return command(*args, told=Told(key, signed, text_only=text_only), **options)

    return run  # type: ignore[return-value]


def key_option(command: Command) -> Command:
    """Declare ``--key`` alone, as ``told``: for steps whose statement nobody can know before they are taken."""

    @click.option("--key", metavar="PATH", help=_KEY)
    @wraps(command)
    def run(*args: Any, key: str | None, **options: Any) -> Any:  # noqa: ANN401 - the command's own
        return command(*args, told=Told(key, None, text_only=False), **options)

    return run  # type: ignore[return-value]


def mode_facts(lake: Lake) -> dict[str, str]:
    """Return what every output in JSON says of how names are checked."""
    return {"approvals": lake.config.approvals.mode}


def tell_mode(lake: Lake) -> None:
    """Say where names are not checked."""
    if lake.config.approvals.mode == UNSIGNED:
        tell(UNSIGNED_NOTE)
