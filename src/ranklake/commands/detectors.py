"""``ranklake detectors``: what looks for faults, and from when on each says something."""

import click

from ranklake.commands.options import json_option, with_config
from ranklake.config import Config
from ranklake.lake.rollups.registry import detectors_with
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, table_lines
from ranklake.views.tell import tell

_COLUMNS = tuple(map(TextColumn, ("detector", "severity", "watches", "thresholds")))
_FACTS = ("name", "watches", "finds", "table", "effect", "severity", "runbook", "false_positive_target")


@click.command()
@json_option
@with_config
def detectors(config: Config, *, as_json: bool) -> None:
    """List what looks for faults: what each watches, and its thresholds, which are settings."""
    listed = detectors_with(config.lake_config)
    if as_json:
        show_json(
            [
                {
                    **{name: getattr(each, name) for name in _FACTS},
                    "grain": list(each.grain),
                    "columns": list(each.columns),
                    "thresholds": thresholds,
                }
                for each, thresholds in listed
            ]
        )
        return
    rows = [
        (each.name, each.severity, each.watches, " ".join(f"{name}={value:g}" for name, value in limits.items()))
        for each, limits in listed
    ]
    tell(*table_lines(_COLUMNS, rows))
