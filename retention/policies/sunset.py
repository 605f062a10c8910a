"""Rows of metrics that are sunset: a rule for each, as if a policy said that they go on the next day.

It is a rule like any other: legal holds and minimums go before it, and so does a rule about runs, or one that names the
metric and keeps its rows longer.
"""

import glob
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ranklake.lake.rollups.life.register import lives
from ranklake.retention.policies.model import Place, Rule
from ranklake.retention.policies.policies import Policies

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake


def with_sunset(policies: Policies, lake: "Lake") -> Policies:
    """Return policies with a rule for each metric that is sunset in a lake; the same ones where none is."""
    rules = tuple(sunset_rules(lake))
    return replace(policies, rules=(*policies.rules, *rules)) if rules else policies


def sunset_rules(lake: "Lake") -> Iterator[Rule]:
    """Yield a rule for each metric that is sunset: about rows under its name, and under others that it has.

    A column of a table is not such rows: it goes by a migration.
    """
    registry = lake.catalog.metrics()
    for name, life in lives(lake).items():
        if life.status != "sunset":
            continue
        known = registry.get(name)
        since = "" if life.since is None else f" since {life.since:%Y-%m-%d}"
        yield Rule(
            name=f"sunset {name}",
            where={"metric": tuple(map(glob.escape, (name, *(known.aka if known else ()))))},
            owner=known.owner if known else "",
            reason=f"The metric {name} is sunset{since}: nobody needs its rows.",
            basis="What nobody needs is not kept; 'ranklake metric sunset' is in the audit trail.",
            at=Place(Path(f"ranklake metric show {name}"), 0),
            deletes=True,
            delete_after_days=0,
        )
