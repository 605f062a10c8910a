"""``ranklake metric`` and ``ranklake request-signal``: the status of metrics; requests for new ones."""

import getpass
from collections.abc import Callable
from datetime import datetime

import click

from ranklake.commands.configured import base_config
from ranklake.commands.context import with_context
from ranklake.commands.options import Group, configuration, contracts_option, json_option, lake_option
from ranklake.config import ConfigError
from ranklake.context import Context
from ranklake.errors import did_you_mean
from ranklake.lake.contracts.model import Metric
from ranklake.lake.contracts.requests import file_request
from ranklake.lake.rollups.life.register import link_to, lives, move
from ranklake.lake.rollups.life.state import Life, Link, MetricLifeError
from ranklake.printable import printable
from ranklake.redaction.redact import redact
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell

_HINT = "pass --contracts DIR or write overlay under [contracts] in ranklake.toml"


@click.command("request-signal")
@click.argument("name")
@click.option("--unit", required=True, help="Such as s, By, W, Cel, ratio, 1, {request}.")
@click.option("--why", required=True, metavar="TEXT", help="What its values show, and their purpose.")
@click.option("--owner", required=True, metavar="WHO", help="Team that would be responsible for it.")
@click.option("--kind", type=click.Choice(["gauge", "counter", "delta", "ratio"]), default="gauge", show_default=True)
@click.option(
    "--sampling",
    type=click.Choice(["step", "interval", "event", "run"]),
    default="interval",
    show_default=True,
    help="When a value is due.",
)
@contracts_option
@json_option
@click.pass_context
def request_signal(
    ctx: click.Context,
    name: str,
    unit: str,
    why: str,
    owner: str,
    kind: str,
    sampling: str,
    *,
    as_json: bool,
) -> None:
    """File a request for a metric into your overlay's registry, where the catalog shows it as requested.

    Repeating the same request changes nothing. Refused if the metric exists.
    """
    overlay = configuration(ctx).overlay
    if overlay is None:
        raise ConfigError("no folder of your own contracts configured", hint=_HINT)
    wanted = Metric(name, unit, kind, redact(owner), sampling, redact(why.strip()), status="requested")
    own = base_config(ctx).overlay
    filed = file_request(overlay, wanted)
    if as_json:
        facts = {"metric": name, "path": str(filed.path), "new": filed.is_new, "near": filed.near}
        show_json(facts)
        return
    tell(f"{name} {'is requested' if filed.is_new else 'was requested already'}: {filed.path}")
    shows = f"ranklake catalog {name}"
    if own is None or overlay.resolve() != own.resolve():
        shows += f" --contracts {overlay}"
        hint = f'without --contracts it is where ranklake.toml says overlay = "{overlay}" under [contracts]'
        tell(f"`{shows}` shows it; {hint}")
    else:
        tell(f"`{shows}` shows it")
    if filed.near:
        tell(f"{filed.near} has a similar name; `ranklake catalog {filed.near}` shows it", err=True)


_DAY = click.DateTime(["%Y-%m-%d"])
_by = click.option(
    "--by", metavar="NAME", default=getpass.getuser, help="Who does it, for the audit log; default: your login name."
)
_reason = click.option("--reason", metavar="TEXT", help="Why; recorded in the audit log.")


def _metric_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a status transition to a command, and their context."""
    command = json_option(with_context(command))
    return _by(_reason(lake_option(contracts_option(command))))


@click.group(cls=Group)
def metric() -> None:
    """Show the status of metrics (requested, active, deprecated, retired, sunset), and change it."""


@metric.command()
@click.argument("name", required=False)
@lake_option
@contracts_option
@json_option
@with_context
def show(context: Context, name: str | None, *, as_json: bool) -> None:
    """Show a metric's status; without NAME, list the metrics that are not active."""
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
    """Mark a requested metric as active, or undo a deprecation."""
    _show(move(context.open_lake(), name, "active", by, reason), as_json=as_json)


@metric.command()
@click.argument("name")
@click.option(
    "--use", "uses", multiple=True, metavar="NEW", help="Its replacement; several are parts that add up to it."
)
@click.option("--factor", type=float, help="Factor from a value of NAME to one of NEW; default: by their units.")
@click.option("--offset", type=float, default=0.0, show_default=True, help="And this added.")
@click.option("--until", type=_DAY, metavar="DATE", help="Last day on which it may be recorded.")
@click.option("--default", type=float, help="Value of its series for steps without one, such as a missing part.")
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
    """Deprecate a metric and name its replacement; repeat it to change the date."""
    lake = context.open_lake()
    links: list[Link] | None = [link_to(lake, name, use, factor, offset) for use in uses] or None
    day = None if until is None else until.date()
    _show(move(lake, name, "deprecated", by, reason, links=links, until=day, default=default), as_json=as_json)


@metric.command()
@click.argument("name")
@click.option(
    "--rows-until", "ends", type=_DAY, metavar="DATE", help="Day from which its rows may be removed; default: none."
)
@_metric_options
def retire(context: Context, name: str, ends: datetime | None, by: str, reason: str | None, *, as_json: bool) -> None:
    """Retire a metric after its grace period. Its rows stay, and its series shows them."""
    day = None if ends is None else ends.date()
    _show(move(context.open_lake(), name, "retired", by, reason, ends=day), as_json=as_json)


@metric.command()
@click.argument("name")
@_metric_options
def sunset(context: Context, name: str, by: str, reason: str | None, *, as_json: bool) -> None:
    """Allow removal of a retired metric's rows. They are due from the next day on: 'ranklake retain plan'."""
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
