"""The configuration of an invocation, and its overrides by options."""

from typing import Final

import click

from ranklake.config import Config, load_config

_GIVEN: Final = "ranklake.given"


def base_config(ctx: click.Context) -> Config:
    """Return the configuration without the options of this invocation, read once."""
    result = ctx.find_object(Config)
    if result is None:
        result = load_config()
        ctx.find_root().obj = result
    return result


def command_line_options(ctx: click.Context) -> dict[str, object]:
    """Return the overrides by this invocation's options, by ``section.key``."""
    result: dict[str, object] = ctx.meta.setdefault(_GIVEN, {})
    return result
