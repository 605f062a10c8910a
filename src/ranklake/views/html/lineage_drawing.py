"""Lineage as a drawing: tables in layers from left to right, a curve from each to what was computed from it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

BOX_WIDTH: Final = 134
BOX_HEIGHT: Final = 26
_ACROSS: Final = 54
_DOWN: Final = 18
_SWEEPS: Final = 4


@dataclass(frozen=True, slots=True)
class Box:
    """A table: its upper left corner, and its kind, which has a colour."""

    name: str
    x: int
    y: int
    kind: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """Boxes, the curves between them as one path of an SVG, and the size of all."""

    boxes: tuple[Box, ...]
    curves: str
    width: int
    height: int


def drawing(flows: Iterable[tuple[str, str]], kinds: Mapping[str, str]) -> Drawing | None:
    """Return the drawing of flows from one table to another; None without any.

    A table stands right of all that it was computed from; of a cycle, which no lake should have, the last flow is left
    out of the order. Tables of a layer stand by where their neighbours do, so that few curves cross.
    """
    into: defaultdict[str, set[str]] = defaultdict(set)
    out: defaultdict[str, set[str]] = defaultdict(set)
    for source, target in flows:
        if source != target:
            into[target].add(source)
            out[source].add(target)
    layers: defaultdict[int, list[str]] = defaultdict(list)
    levels: dict[str, int] = {}
    for name in sorted({*into, *out}):
        layers[_level(name, into, levels, ())].append(name)
    if not layers:
        return None
    for sweep in range(_SWEEPS):
        near = into if sweep % 2 == 0 else out
        place = {name: at / len(names) for names in layers.values() for at, name in enumerate(names)}
        for names in layers.values():
            names.sort(key=lambda name: (_mean([place[one] for one in near[name]], place[name]), name))
    height = max(map(len, layers.values())) * (BOX_HEIGHT + _DOWN)
    boxes = {}
    for level, names in layers.items():
        for at, name in enumerate(names):
            y = (2 * at + 1) * height // (2 * len(names)) - BOX_HEIGHT // 2
            boxes[name] = Box(name, level * (BOX_WIDTH + _ACROSS), y, kinds.get(name, "fact"))
    curves = "".join(_curve(boxes[one], boxes[name]) for name in sorted(into) for one in sorted(into[name]))
    width = max(layers) * (BOX_WIDTH + _ACROSS) + BOX_WIDTH
    return Drawing(tuple(boxes.values()), curves, width, height)


def _level(name: str, into: Mapping[str, set[str]], levels: dict[str, int], above: tuple[str, ...]) -> int:
    if name not in levels:
        sources = [one for one in sorted(into.get(name, ())) if one not in {*above, name}]
        levels[name] = 1 + max((_level(one, into, levels, (*above, name)) for one in sources), default=-1)
    return levels[name]


def _mean(places: list[float], own: float) -> float:
    return sum(places) / len(places) if places else own


def _curve(source: Box, target: Box) -> str:
    begin, end, middle = source.x + BOX_WIDTH, target.x, _ACROSS // 2
    high, low = source.y + BOX_HEIGHT // 2, target.y + BOX_HEIGHT // 2
    return f"M{begin} {high}C{begin + middle} {high} {end - middle} {low} {end} {low}"
