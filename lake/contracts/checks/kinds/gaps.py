"""``gaps``: no series has a gap of more than `max` (10) times its usual distance between samples.

Gaps of less than `min` seconds (5) are none. What one file leaves open another may fill: only what all leave open is a
gap.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.checks.kind import CheckKind, Finding, Surroundings, Watch
from ranklake.lake.contracts.model import Check

if TYPE_CHECKING:
    from ranklake.lake.contracts.checks.series import Batch

_TIMES: Final = 10.0
_SHORTEST_S: Final = 5.0
_FEWEST: Final = 5

_Span = tuple[float, float]


def _part(check: Check, batch: "Batch") -> dict[tuple[Any, ...], tuple[int, float, float, float, list[_Span]]]:
    """Return for each series: rows, first, last, usual distance, and what may be gaps."""
    import numpy as np

    found = {}
    floor = (_SHORTEST_S if check.min is None else float(check.min)) * 1e6
    for key, along, _ in batch.series(check.by, check.columns[0]):
        steps = np.diff(along)
        real = steps[steps > 0]
        usual = float(np.median(real)) if len(real) else 0.0
        wide = np.flatnonzero(steps > max(floor, usual))
        spans = [(float(along[at]), float(along[at + 1])) for at in wide.tolist()]
        found[key] = (len(along), float(along[0]), float(along[-1]), usual, spans)
    return found


def _judge(check: Check, parts: Sequence[dict[tuple[Any, ...], Any]], about: Surroundings) -> Finding:
    from ranklake.lake.contracts.checks.series import listed, seconds, told

    del about
    times = _TIMES if check.max is None else float(check.max)
    floor = (_SHORTEST_S if check.min is None else float(check.min)) * 1e6
    series: dict[tuple[Any, ...], list[Any]] = {}
    for part in parts:
        for key, facts in part.items():
            series.setdefault(key, []).append(facts)
    rows = lacking = 0
    lines = []
    for key, all_of in series.items():
        count = sum(facts[0] for facts in all_of)
        rows += count
        usual = max((facts[0], facts[3]) for facts in all_of)[1]
        if count < _FEWEST or not usual:
            continue
        gaps = [span for span in _open(all_of) if span[1] - span[0] > max(floor, times * usual)]
        lost = sum(round((end - start) / usual) - 1 for start, end in gaps)
        rows += lost
        lacking += lost
        if gaps:
            longest = max(end - start for start, end in gaps)
            lines.append(
                f"{told(check.by, key)}: gaps: {len(gaps)}, the longest {seconds(longest)} (usual {seconds(usual)})"
            )
    return Finding(rows, lacking, listed(lines), f"no gap above {times:.4g} times the usual distance")


def _open(all_of: Sequence[Any]) -> list[_Span]:
    """Return what all batches of a series leave open between its first and its last row."""
    begin, end = min(facts[1] for facts in all_of), max(facts[2] for facts in all_of)
    left: list[_Span] = [(begin, end)]
    for _, first, last, _, spans in all_of:
        free = [(begin, first), *spans, (last, end)]
        left = [(max(a, c), min(b, d)) for a, b in left for c, d in free if min(b, d) > max(a, c)]
    return left


KIND = CheckKind(
    name="gaps",
    wrong=lambda check: f"series have gaps along {check.columns[0]}",
    level="watch",
    needs=(("columns",), ("by",)),
    own_columns=True,
    types=frozenset({"timestamp"}),
    dimension="completeness",
    watch=Watch(_part, _judge),
)
