"""``fleet_gap``: there is no time of more than `max` seconds (600) in which all series are silent, and go on after.

One series that stops is its own trouble; all of them at once is the recording's. At least three series (`min`) have
rows before and after.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.checks.kind import CheckKind, Finding, Surroundings, Watch
from ranklake.lake.contracts.model import Check

if TYPE_CHECKING:
    from ranklake.lake.contracts.checks.series import Batch

_LONGEST_S: Final = 600.0
_FEWEST: Final = 3
_SECOND_US: Final = 1_000_000


def _part(check: Check, batch: "Batch") -> tuple[Any, dict[tuple[Any, ...], tuple[int, int, int, float]]]:
    """Return seconds that have rows, as ranges, and of each series its rows, first, last and usual distance."""
    import numpy as np

    when = np.unique(batch.values(check.columns[0]) // _SECOND_US)
    breaks = np.flatnonzero(np.diff(when) > 1)
    ranges = np.stack([when[np.r_[0, breaks + 1]], when[np.r_[breaks, len(when) - 1]]])
    series = {}
    for key, along, _ in batch.series(check.by, check.columns[0]):
        steps = np.diff(along)
        usual = float(np.median(steps)) if len(steps) else 0.0
        series[key] = (len(along), int(along[0]), int(along[-1]), usual)
    return ranges, series


def _judge(check: Check, parts: Sequence[Any], about: Surroundings) -> Finding:
    import numpy as np

    from ranklake.lake.contracts.checks.series import listed, seconds

    del about
    limit = _LONGEST_S if check.max is None else float(check.max)
    fewest = _FEWEST if check.min is None else int(check.min)
    if not parts:
        return Finding(unknown="there are no rows")
    ranges = np.concatenate([part[0] for part in parts], axis=1)
    starts, reach = ranges[0][np.argsort(ranges[0], kind="stable")], np.sort(ranges[1])
    series: dict[tuple[Any, ...], list[Any]] = {}
    for _, some in parts:
        for key, facts in some.items():
            known = series.setdefault(key, [0, facts[1], facts[2], facts[3]])
            series[key] = [
                known[0] + facts[0],
                min(known[1], facts[1]),
                max(known[2], facts[2]),
                max(known[3], facts[3]),
            ]
    rows = sum(facts[0] for facts in series.values())
    lost, lines = 0, []
    for begin, end in zip(reach[:-1].tolist(), starts[1:].tolist(), strict=True):
        if end - begin <= limit:
            continue
        open_us = (end - begin) * _SECOND_US
        across = [
            one for one in series.values() if one[1] <= begin * _SECOND_US + _SECOND_US and one[2] >= end * _SECOND_US
        ]
        usual = [one[3] for one in across if 0 < one[3] * 10 < open_us]
        if len(usual) >= fewest:
            lost += sum(round(open_us / one) for one in usual)
            lines.append(f"{len(usual)} series at once for {seconds(open_us)}")
    return Finding(rows + lost, lost, listed(lines), f"no {limit:,.0f} s in which all series are silent")


KIND = CheckKind(
    name="fleet_gap",
    wrong=lambda check: f"all series of {check.columns[0]} are silent at once: the recording may have been out",
    level="watch",
    needs=(("columns",), ("by",)),
    own_columns=True,
    types=frozenset({"timestamp"}),
    dimension="completeness",
    watch=Watch(_part, _judge),
)
