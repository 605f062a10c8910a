"""Options of the commands that hand out what `ranklake sharing serve` answers: to whom, until when, where, by whom."""

from collections.abc import Callable
from datetime import datetime
from typing import Final
from urllib.parse import urlsplit

import click

from ranklake.commands.grants import FutureTime
from ranklake.commands.options import Command
from ranklake.errors import RanklakeError
from ranklake.lake.audit import clock
from ranklake.retention.grants.grant import NAME

ENDPOINT: Final = "http://127.0.0.1:8411/delta-sharing"
"""Address of the server where nothing else is said."""


def handed_out(ends: str) -> Callable[[Command], Command]:
    """Declare ``--to``, ``--until``, ``--endpoint`` and ``--by``; `ends` are examples of an end."""
    options = (
        click.option(
            "--to", metavar="NAME", required=True, callback=_name, help="Who gets it; kept in the audit trail."
        ),
        click.option(
            "--until",
            type=FutureTime(),
            metavar="TIME",
            required=True,
            callback=_to_come,
            help=f"Its end: {ends} (UTC).",
        ),
        click.option(
            "--endpoint", metavar="URL", callback=_address, help=f"Address of the server; default: {ENDPOINT}."
        ),
        click.option("--by", metavar="NAME", help="Who makes it; default: the account that runs this."),
    )

    def declare(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return declare


def _name(_context: click.Context, _option: click.Parameter, to: str) -> str:
    """Return who gets it, as the audit trail names people."""
    name = " ".join(to.split())
    if not NAME.fullmatch(name):
        raise RanklakeError("nobody gets it", where="--to", hint="name an account, a person or a team, without #")
    return name


def _address(_context: click.Context, _option: click.Parameter, url: str | None) -> str:
    if not url:
        return ENDPOINT
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in {"http", "https"} and bool(parts.hostname) and not (parts.query or parts.fragment)
    except ValueError:
        is_one = False
    if not is_one:
        raise RanklakeError(f"{url!r} is no address of a server", where="--endpoint", hint=f"write one like {ENDPOINT}")
    return url.rstrip("/")


def _to_come(_context: click.Context, _option: click.Parameter, until: datetime) -> datetime:
    if until <= clock.now():
        raise RanklakeError(f"{until:%Y-%m-%d %H:%M} UTC is past", where="--until", hint="name a time to come")
    return until
