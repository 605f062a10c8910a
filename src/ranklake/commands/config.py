"""``ranklake config``."""

import os
from pathlib import Path
from typing import Any

import click

from ranklake.commands.configured import command_line_options
from ranklake.commands.options import Group, contracts_option, json_option, overriding
from ranklake.config import ConfigError, ConfigFile, merge_environment, read_config
from ranklake.config.check import problems
from ranklake.config.shown import shown_settings
from ranklake.printable import counted, printable
from ranklake.views.json_output import json_text, show_json
from ranklake.views.table import TextColumn, table_lines
from ranklake.views.tell import tell


@click.group(cls=Group)
def config() -> None:
    """Show the configuration, and check it.

    Options of a command override the environment, which overrides the file, which overrides defaults. Empty values are
    ignored.
    """


@config.command()
@overriding("--lake", place="lake.uri", metavar="URI", help="URI or folder of the lake.")
@overriding("--spool", place="spool.uri", metavar="URI", help="URI or folder of the spool.")
@overriding("--dask", place="dask.address", metavar="ADDRESS", help="Dask scheduler, such as tls://host:8786.")
@contracts_option
@click.option("--all", "is_all", is_flag=True, help="Also show keys with default values.")
@json_option
@click.pass_context
def show(ctx: click.Context, *, is_all: bool, as_json: bool) -> None:
    """Show each key's value and where it comes from: flag, environment, file with line, or default.

    Secrets are hidden, references to them are not followed. Faulty keys of the file are left out, and counted.
    """
    read = read_config()
    result = list(
        shown_settings(
            merge_environment(read, os.environ).overridden(command_line_options(ctx)),
            read,
            os.environ,
            command_line_options(ctx),
        )
    )
    if as_json:
        show_json(result)
    else:
        set_ = [one for one in result if is_all or one.origin != "default"]
        rows = [(one.key, printable(_text(one.value)), printable(one.origin)) for one in set_]
        tell(*table_lines([TextColumn("key"), TextColumn("value"), TextColumn("origin")], rows))
        if len(set_) < len(result):
            tell(f"{counted(len(result) - len(set_), 'key')} at the default; --all shows them, too")
    if read.problems:
        tell(f"{counted(len(read.problems), 'problem')} in {read.file}: 'ranklake config check' tells", err=True)


@config.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@json_option
def check(file: Path | None, *, as_json: bool) -> int:
    """Print all faults of the configuration, or of FILE alone; exit 1 if there are any.

    Also checks that files it names exist, and that references to secrets resolve: helpers are run.
    """
    environment = {} if file else os.environ
    try:
        read = read_config(file)
    except ConfigError as error:
        read = ConfigFile(problems=(error,))
    result = list(problems(merge_environment(read, environment), read, environment))
    if as_json:
        show_json([{"where": one.where, "what": one.what, "hint": one.hint} for one in result])
    else:
        tell(*result, *([] if result else [f"{read.file or 'no file, and the environment'}: nothing is wrong"]))
    return 1 if result else 0


def _text(value: Any) -> str:  # noqa: ANN401 - a key's
    return value if isinstance(value, str) else json_text(value)
