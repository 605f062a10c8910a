"""``capacity_jump``: no more than `max` (0.5) of a fleet's capacity moves, comes or goes from one date to the next.

A date's capacity of each pool is the median of its rows; it is compared with the median of the last seven dates that
are known, and with nothing before three are.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ranklake.lake.contracts.checks.kind import CheckKind, Finding, Surroundings, Watch
from ranklake.lake.contracts.model import NUMBERS, Check

if TYPE_CHECKING:
    from ranklake.lake.contracts.checks.series import Batch

_MOST: Final = 0.5
_KNOWN: Final = 3
_DATES: Final = 7
_SERIES: Final = 2_000  # whose figures are kept: pools, not devices


def _part(check: Check, batch: "Batch") -> dict[str, tuple[int, float]]:
    """Return rows and median of each pool."""
    import numpy as np

    from ranklake.lake.contracts.checks.series import told

    found = {}
    of = batch.groups(check.by)
    values = batch.values(check.columns[0]).astype(float)
    for number, key in enumerate(of.keys):
        own = values[of.of == number]
        own = own[~np.isnan(own)]
        if len(own):
            found[told(check.by, key)] = (len(own), float(np.median(own)))
    return found


def _judge(check: Check, parts: Sequence[dict[str, tuple[int, float]]], about: Surroundings) -> Finding:
    import numpy as np

    from ranklake.lake.contracts.checks.series import figure, listed

    most = _MOST if check.max is None else float(check.max)
    rows: dict[str, int] = {}
    now: dict[str, float] = {}
    for part in parts:
        for name, (count, value) in part.items():
            now[name] = value if count >= rows.get(name, 0) else now[name]
            rows[name] = rows.get(name, 0) + count
    if not now:
        return Finding(unknown="no capacity is told")
    if len(now) > _SERIES:
        return Finding(unknown=f"{len(now):,} series are too many to compare")
    before = [about.earlier[day] for day in sorted(about.earlier)[-_DATES:]]
    if len(before) < _KNOWN:
        return Finding(measured=now, unknown=f"{len(before)} earlier dates are known")
    usual = {name: float(np.median([one.get(name, 0.0) for one in before])) for name in {*now, *before[-1]}}
    moved = {name: now.get(name, 0.0) - was for name, was in usual.items()}
    total = max(sum(usual.values()), sum(now.values()))
    share = sum(map(abs, moved.values())) / total if total else 0.0
    jumps = sorted(((name, by) for name, by in moved.items() if by), key=lambda one: -abs(one[1]))
    lines = [f"{name} {figure(usual[name])} to {figure(now.get(name, 0.0))}" for name, _ in jumps]
    hit = sum(rows.get(name, 0) for name, _ in jumps) or 1
    count = max(sum(rows.values()), hit)
    told = f"{share:.2f} of {figure(total)} moved: {listed(lines)}" if lines else "nothing moved"
    return Finding(count, hit if share > most else 0, told, f"at most {most:.4g} of the usual capacity moves", now)


KIND = CheckKind(
    name="capacity_jump",
    wrong=lambda check: f"capacity ({check.columns[0]}) jumps between dates",
    level="watch",
    needs=(("columns",), ("by",)),
    own_columns=True,
    types=NUMBERS - {"decimal"},
    dimension="consistency",
    watch=Watch(_part, _judge, remembers=True),
)
