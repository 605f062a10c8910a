"""Reads racks, switches and rails of nodes from the operator's file, and finds places that faults have in common.

The file is CSV, YAML, or Slurm's ``topology.conf``:

node,rack,switch          node,label,value                        - {nodes: "n[1-8]", rack: r4, rails: "leaf[1-8]"}
n1,r4,s1                  n1,topology.kubernetes.io/rack,r4       SwitchName=s1 Nodes=n[1-8]

A rail is the network switch of a GPU. GPU i of each host is connected to the i-th of the host's rails.
"""

import csv
import re
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.operator_files import OperatorFile, raise_all

TOPOLOGY: Final = "topology"
"""Name of the lookup with the operator's topology, from the lake's configuration."""
KINDS: Final = ("switch", "rack")
"""Kinds of places that nodes share, from the smallest."""
RAIL: Final = "rail"
"""Kind of place that GPUs with the same index share."""
RAILS: Final = "rails"
"""Column with the rails of a node: their number (they are then named 0, 1, …), or their names in the order of GPUs."""
PLACE: Final = (*KINDS, RAILS)
COLUMNS: Final = ("node", "rack", "switch", RAILS)
MOST_RAILS: Final = 256
LABELS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("rack", "topology-rack"), "rack"),
    RAILS: RAILS,
    **dict.fromkeys(
        ("switch", "leaf", "leaf-switch", "tor", "network-node-layer-3", "gce-topology-subblock"), "switch"
    ),
}
"""Column by last part of a Kubernetes label. Of a cloud's layers of switches, the one nearest to the node is used."""
SCHEMA: Final = pa.schema(dict.fromkeys(COLUMNS, pa.string()))
MOST_NODES: Final = 200_000
_RANGE: Final = re.compile(r"\[([0-9,\-]+)\]")
_PAIR: Final = re.compile(r"(\w+)=(\S+)")


class TopologyError(RanklakeError):
    """An invalid topology file, or one that contradicts itself."""


@dataclass(frozen=True)
class NodeGroup:
    """An entry of a YAML file: nodes in one place. `nodes` has names or ranges such as ``n[1-8]``, with commas."""

    nodes: str
    rack: str = ""
    switch: str = ""
    rails: str | int = ""


def topology_table(path: str) -> pa.Table:
    """Read a topology for SQL, with the schema `SCHEMA`; empty for an empty path. Raises `TopologyError`."""
    places = read_topology(path) if path else {}
    rows = [{"node": node, **{kind: place.get(kind) or None for kind in PLACE}} for node, place in places.items()]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def read_topology(path: str) -> dict[str, dict[str, str]]:
    """Return the rack, switch and rails of each node in a file.

    Raises one `TopologyError` with all errors: invalid lines, and nodes in two places.
    """
    places: dict[str, dict[str, str]] = {}
    errors: list[RanklakeError] = []
    for where, nodes, place in _entries(Path(path)):
        try:
            rail_names(place.get(RAILS, ""))
            for node in host_names(nodes):
                _add(places.setdefault(node, {}), node, place)
        except ValueError as error:
            errors.append(TopologyError(str(error), where=where, hint="name each node once, such as n[1-8]"))
    raise_all(errors)
    return places


def _add(known: dict[str, str], node: str, place: Mapping[str, str]) -> None:
    for kind in (kind for kind in PLACE if place.get(kind)):
        if known.setdefault(kind, place[kind]) != place[kind]:
            raise ValueError(f"node {node!r} is at {kind} {place[kind]!r}, and at {known[kind]!r} above")


@cache
def rail_names(text: str) -> tuple[str, ...]:
    """Return the rails of a node's GPUs, by index. Raises `ValueError` if the text is no number or list of rails.

    >>> rail_names("2"), rail_names("leaf[1-2],leaf2")
    (('0', '1'), ('leaf1', 'leaf2', 'leaf2'))
    """
    try:
        if text.isdecimal():
            names = tuple(map(str, range(min(int(text), MOST_RAILS + 1))))
        else:
            names = tuple(host_names(text)) if text else ()
    except ValueError:
        names = ("",) * (MOST_RAILS + 1)
    if len(names) > MOST_RAILS:
        raise ValueError(f"{text[:80]!r} is no number of rails, nor a list of them such as leaf[1-8]")
    return names


def host_names(text: str) -> Iterator[str]:
    """Yield the names in a Slurm host list. Raises `ValueError` for other texts.

    >>> list(host_names("a[08-10],b2"))
    ['a08', 'a09', 'a10', 'b2']
    """
    count = 0
    for part in re.split(r",(?![^\[]*\])", text.strip()):
        for name in _range_names(part.strip()):
            count += 1
            if not name or "[" in name or count > MOST_NODES:
                raise ValueError(f"{part[:80]!r} is no list of nodes")
            yield name


def _range_names(text: str) -> Iterator[str]:
    match = _RANGE.search(text)
    if match is None:
        yield text
        return
    for item in match[1].split(","):
        first, _, last = item.partition("-")
        if not first or int(last or first) - int(first) >= MOST_NODES:
            raise ValueError(f"{text[:80]!r} is no range of nodes")
        for number in range(int(first), int(last or first) + 1):
            yield from _range_names(f"{text[: match.start()]}{number:0{len(first)}d}{text[match.end() :]}")


def _entries(path: Path) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield for each entry: file and line, the list of nodes, and their rack, switch and rails."""
    if path.suffix in {".yaml", ".yml"}:
        file = OperatorFile(path, error=TopologyError, noun="topology file")
        for number, group in enumerate(file.load(tuple[NodeGroup, ...])):
            yield (
                f"{path}:{file.line((number,))}",
                group.nodes,
                {"rack": group.rack, "switch": group.switch, RAILS: str(group.rails)},
            )
        return
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        hint = "name a file in UTF-8: CSV, YAML or topology.conf"
        raise TopologyError(f"no topology file: {error}", where=str(path), hint=hint) from None
    if any(re.match(r"\s*(Switch|Block)Name=", line, re.IGNORECASE) for line in lines):
        for number, line in enumerate(lines, 1):
            keys = {key.casefold(): value for key, value in _PAIR.findall(line.partition("#")[0])}
            name = keys.get("switchname") or keys.get("blockname")
            if name and "nodes" in keys:  # other switches only connect switches
                yield f"{path}:{number}", keys["nodes"], {"switch": name}
        return
    yield from _csv_entries(path, lines)


def _csv_entries(path: Path, lines: list[str]) -> Iterator[tuple[str, str, dict[str, str]]]:
    reader = csv.DictReader(lines)
    names = reader.fieldnames or ()
    labelled = {"node", "label", "value"} <= set(names)
    unknown = next((name for name in names if name not in COLUMNS), "")
    if "node" not in names or (unknown and not labelled) or len(names) == 1:
        hint = did_you_mean(unknown, COLUMNS) or "the first line is node,rack,switch,rails or node,label,value"
        raise TopologyError(
            f"unknown column {unknown!r}" if unknown else "columns are missing", where=f"{path}:1", hint=hint
        )
    for row in reader:
        cells = {name: (row.get(name) or "").strip() for name in names}
        kind = LABELS.get(cells["label"].rpartition("/")[2], "") if labelled else ""
        place = {kind: cells["value"]} if labelled else {name: cells.get(name, "") for name in PLACE}
        if kind or not labelled:
            yield f"{path}:{reader.line_num}", cells["node"], place


Member = str | tuple[str, int]
"""A host, or a GPU: its host, and its index there."""
_WORDS: Final = {"switch": ("hosts", "behind"), "rack": ("hosts", "in"), RAIL: ("GPUs", "on")}


@dataclass(frozen=True)
class SharedPlace:
    """A switch, rack or rail with many faulty members: `hit` of its `members`, which are hosts or GPUs."""

    kind: str
    name: str
    hit: frozenset[Member]
    members: frozenset[Member]

    def __str__(self) -> str:
        """Return the number of faulty hosts or GPUs and the place, as text."""
        count = "all" if self.hit == self.members else f"{len(self.hit)} of the"
        noun, preposition = _WORDS[self.kind]
        return f"{count} {len(self.members)} {noun} {preposition} {self.kind} {self.name}"

    @property
    def share(self) -> float:
        """Faulty members divided by all members."""
        return len(self.hit) / len(self.members)


def shared_places(
    places: Mapping[str, Mapping[str, str]], hit: AbstractSet[str], among: Collection[str]
) -> Iterator[SharedPlace]:
    """Yield the switches with many faulty hosts; if there are none, the racks.

    At least two hosts and half of a place's hosts must be faulty, and among other hosts at most half of that share: a
    fault of the whole cluster is not caused by one switch. Without other hosts, nothing is yielded.

    Parameters
    ----------
    places
        Rack and switch by host.
    hit, among
        Faulty hosts, and all hosts.
    """
    for kind in KINDS:
        shared = list(_shared(kind, {host: places[host].get(kind, "") for host in among if host in places}, hit))
        yield from shared
        if shared:
            return


def rail_of(places: Mapping[str, Mapping[str, str]], gpu: tuple[str, int | None]) -> str:
    """Return the rail of a GPU, given its host and its index there; empty if unknown."""
    host, index = gpu
    rails = rail_names(places.get(host, {}).get(RAILS, ""))
    return rails[index] if index is not None and 0 <= index < len(rails) else ""


def shared_rails(
    places: Mapping[str, Mapping[str, str]],
    hit: Collection[tuple[str, int | None]],
    among: Collection[tuple[str, int | None]],
) -> Iterator[SharedPlace]:
    """Yield the rails with many faulty GPUs, by the rule of `shared_places`.

    Parameters
    ----------
    hit, among
        Faulty GPUs, and all GPUs: host and index there, None if unknown.
    """
    known = {(host, number): rail_of(places, (host, number)) for host, number in among if number is not None}
    if len({host for host, _ in known}) > 1:
        yield from _shared(RAIL, known, {(host, number) for host, number in hit if number is not None})


def _shared(kind: str, names: Mapping[Any, str], hit: AbstractSet[Any]) -> Iterator[SharedPlace]:
    for name in sorted({names[member] for member in hit if names.get(member)}):
        members = frozenset(member for member, place in names.items() if place == name)
        inside, others = members & hit, len(names) - len(members)
        outside = len(hit & names.keys() - members)
        is_most = len(inside) >= max(2, len(members) / 2)
        if is_most and others and 2 * outside * len(members) <= len(inside) * others:
            yield SharedPlace(kind, name, frozenset(inside), members)
