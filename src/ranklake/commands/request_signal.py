"""``ranklake request-signal``: ask for a metric that nobody records yet."""

import click

from ranklake.commands.configured import base_config
from ranklake.commands.options import configuration, contracts_option, json_option
from ranklake.config import ConfigError
from ranklake.lake.contracts.model import Metric
from ranklake.lake.contracts.requests import file_request
from ranklake.redaction.redact import redact
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell

_HINT = "pass --contracts DIR or write overlay under [contracts] in ranklake.toml"


@click.command("request-signal")
@click.argument("name")
@click.option("--unit", required=True, help="Such as s, By, W, Cel, ratio, 1, {request}.")
@click.option("--why", required=True, metavar="TEXT", help="What its values would show, and what for.")
@click.option("--owner", required=True, metavar="WHO", help="Team that would be responsible for it.")
@click.option("--kind", type=click.Choice(["gauge", "counter", "delta", "ratio"]), default="gauge", show_default=True)
@click.option(
    "--sampling",
    type=click.Choice(["step", "interval", "event", "run"]),
    default="interval",
    show_default=True,
    help="When a value would be due.",
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
