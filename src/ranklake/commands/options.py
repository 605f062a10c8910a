"""Options that several commands share. Those that override configuration are declared here, each once.

Their values are not parameters of the command: `configuration` and `with_config` return the configuration with the
overrides, and `ranklake.commands.context.with_context` a context made from it.
"""

import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from functools import update_wrapper
from pathlib import Path
from typing import Any, TypeVar

import click

from ranklake.commands.completion import complete_roles
from ranklake.commands.configured import base_config, command_line_options
from ranklake.config import Config
from ranklake.flows.deployments import PIPELINE_EVERY_S

Command = TypeVar("Command", bound=Callable[..., Any])


class Number(click.FloatRange):
    """A finite number within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's
        """Return a number. Raises click's error for other text."""
        result = super().convert(value, param, ctx)
        return result if math.isfinite(result) else self.fail(f"{value} is not a number", param, ctx)


class Group(click.Group):
    """A group whose help wraps the first sentence of each command instead of cutting it off.

    A group of click's cuts sentences at the end of the line.
    """

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their summaries."""
        commands = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(limit=1000)) for name, one in commands])


Group.group_class = Group  # of groups within a group


def configuration(ctx: click.Context) -> Config:
    """Return the configuration of this invocation."""
    return base_config(ctx).overridden(command_line_options(ctx))


def with_config(command: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the `Config` of this invocation as the first argument."""

    @click.pass_context
    def run(ctx: click.Context, /, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - the command's own
        return command(configuration(ctx), *args, **options)

    return update_wrapper(run, command)


def overriding(*names: str, place: str, required: bool = False, **attributes: Any) -> Callable[[Command], Command]:  # noqa: ANN401 - click's
    """Declare an option that overrides a key, ``section.key``; a required key must be set by either.

    Parameters
    ----------
    attributes
        As for `click.option`; with ``expose_value=True`` the command gets the option's value, too.
    """

    def note(ctx: click.Context, parameter: click.Parameter, value: object) -> object:
        del parameter
        command_line_options(ctx)[place] = str(value or "")
        if required:
            configuration(ctx).uri_of(place.partition(".")[0])
        return value

    return click.option(*names, callback=note, **{"expose_value": False, **attributes})


lake_option = overriding("--lake", place="lake.uri", required=True, metavar="URI", help="URI or folder of the lake.")
spool_option = overriding(
    "--spool", place="spool.uri", required=True, metavar="URI", help="URI or folder of the spool."
)
every_option = click.option(
    "--every-s",
    default=PIPELINE_EVERY_S,
    show_default=True,
    type=click.IntRange(10, 31 * 86_400),
    help="Time between runs of the pipeline, in seconds.",
)
also_option = click.option(
    "--also",
    "folders",
    metavar="PATH",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="Also use this folder, such as a local spool or Prefect's home; repeatable. The report is always included.",
)
new_option = click.option(
    "--new",
    "is_new",
    is_flag=True,
    help="Make a new lake although there was one: without the former's holds, audit log and deletions.",
)
dask_option = overriding(
    "--dask",
    place="dask.address",
    metavar="ADDRESS",
    help="Dask scheduler, such as tls://host:8786; default: a local cluster.",
)
contracts_option = overriding(
    "--contracts",
    place="contracts.overlay",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder of your own contracts and metrics.",
)
prices_option = overriding(
    "--prices",
    place="cost.prices",
    metavar="FILE",
    help="Price table (CSV) for the rollup cost; default: as configured.",
)
role_option = click.option(
    "--role",
    shell_complete=complete_roles,
    help="Query as this role, from the file that [sql] roles in ranklake.toml names.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def optional_lake(text: str) -> Callable[[Command], Command]:
    """Declare ``--lake`` for a command that needs no lake."""
    return overriding("--lake", place="lake.uri", metavar="URI", help=text)


def optional_spool(text: str) -> Callable[[Command], Command]:
    """Declare ``--spool`` for a command that needs no spool."""
    return overriding("--spool", place="spool.uri", metavar="URI", help=text)


def day_of(text: str | None, hint: str) -> date:
    """Return a date, today (UTC) for None. Raises `click.BadParameter`."""
    if text is None:
        return datetime.now(UTC).date()
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a date such as 2026-12-31", param_hint=hint) from error
