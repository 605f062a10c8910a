"""``ranklake metric``: the status of metrics, and its transitions."""

import getpass
from collections.abc import Callable
from datetime import datetime

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import Group, contracts_option, json_option, lake_option
from ranklake.context import Context
from ranklake.errors import did_you_mean
from ranklake.lake.rollups.life.register import link_to, lives, move
from ranklake.lake.rollups.life.state import Life, Link, MetricLifeError
from ranklake.printable import printable
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell

_DAY = click.DateTime(["%Y-%m-%d"])
_by = click.option(
    "--by", metavar="NAME", default=getpass.getuser, help="Who does it, for the audit trail; default: your login name."
)
_reason = click.option("--reason", metavar="TEXT", help="Why; recorded in the audit trail.")


def _metric_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a status transition to a command, and their context."""
    command = json_option(with_context(command))
    return _by(_reason(lake_option(contracts_option(command))))


@click.group(cls=Group)
def metric() -> None:
    """Show where metrics stand (requested, active, deprecated, retired, sunset), and bring them on."""


@metric.command()
@click.argument("name", required=False)
@lake_option
@contracts_option
@json_option
@with_context
def show(context: Context, name: str | None, *, as_json: bool) -> None:
    """Show where a metric stands; without NAME, all that are not simply active."""
    every = lives(context.open_lake())
    if name is not None and name not in every:
        hint = did_you_mean(name, every) or "see: ranklake catalog"
        raise MetricLifeError("there is no such metric", where=name, hint=hint)
    result = [
        one for one in every.values() if (one.metric == name if name else one.status not in {"active", "planned"})
    ]
    if as_json:
        show_json([one.plain() for one in result])
        return
    for life in sorted(result, key=lambda life: life.metric):
        tell(_line(life))
    if not result:
        tell("every metric is active")


@metric.command()
@click.argument("name")
@_metric_options
def activate(context: Context, name: str, by: str, reason: str | None, *, as_json: bool) -> None:
    """Say that a requested metric is recorded now, or take a deprecation back."""
    _show(move(context.open_lake(), name, "active", by, reason), as_json=as_json)


@metric.command()
@click.argument("name")
@click.option("--use", "uses", multiple=True, metavar="NEW", help="What took its place; several are parts that add up.")
@click.option("--factor", type=float, help="A value of NEW is one of NAME times it; default: what their units say.")
@click.option("--offset", type=float, default=0.0, show_default=True, help="And this added.")
@click.option("--until", type=_DAY, metavar="DATE", help="Last day on which it may still be recorded.")
@click.option(
    "--default", type=float, help="Value of its series where a step has none, such as a part that is lacking."
)
@_metric_options
def deprecate(  # noqa: PLR0913 - one parameter an option
    context: Context,
    name: str,
    uses: tuple[str, ...],
    factor: float | None,
    offset: float,
    until: datetime | None,
    default: float | None,
    *,
    by: str,
    reason: str | None,
    as_json: bool,
) -> None:
    """Say that a metric is to be recorded no more, and what takes its place; or so anew, with another date."""
    lake = context.open_lake()
    links: list[Link] | None = [link_to(lake, name, use, factor, offset) for use in uses] or None
    day = None if until is None else until.date()
    _show(move(lake, name, "deprecated", by, reason, links=links, until=day, default=default), as_json=as_json)


@metric.command()
@click.argument("name")
@click.option("--rows-until", "ends", type=_DAY, metavar="DATE", help="Day from which its rows may go; default: none.")
@_metric_options
def retire(context: Context, name: str, ends: datetime | None, by: str, reason: str | None, *, as_json: bool) -> None:
    """Say, once its grace is over, that a metric is recorded no more. Its rows stay, and its series shows them."""
    day = None if ends is None else ends.date()
    _show(move(context.open_lake(), name, "retired", by, reason, ends=day), as_json=as_json)


@metric.command()
@click.argument("name")
@_metric_options
def sunset(context: Context, name: str, by: str, reason: str | None, *, as_json: bool) -> None:
    """Say that nobody needs the rows of a retired metric. They are due from the next day on: 'ranklake retain plan'."""
    _show(move(context.open_lake(), name, "sunset", by, reason), as_json=as_json)


def _show(life: Life, *, as_json: bool) -> None:
    if as_json:
        show_json(life.plain())
    else:
        tell(_line(life))


def _line(life: Life) -> str:
    parts = [f"{life.metric}: {life.status}" + ("" if life.since is None else f" since {life.since:%Y-%m-%d}")]
    parts += [f"use {link.name} (value times {link.factor:g} + {link.offset:g})" for link in life.links]
    parts += [] if life.until is None else [f"may be recorded until {life.until}"]
    parts += [] if life.default is None else [f"{life.default:g} where a step has no value"]
    parts += [] if life.ends is None else [f"rows stay until {life.ends}"]
    return printable("; ".join(parts))
