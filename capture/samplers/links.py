"""Links: state and speed of a host's network cards and InfiniBand ports, from /sys.

Sources: the kernel's Documentation/ABI/testing/sysfs-class-net (operstate, speed in Mbit/s, -1 where it is not known)
and sysfs-class-infiniband (state, rate, board_id, hca_type).
"""

import re
from typing import Any, Final

from ranklake.capture.samplers.reading import Tree, UnavailableError

Link = dict[str, Any]

_CARDS: Final = "sys/class/net"
_PORTS: Final = "sys/class/infiniband"
_UP: Final = frozenset({"up", "unknown"})
"""Some drivers never say more than ``unknown``; a link that is known to be down says so."""
_RATE: Final = re.compile(r"([\d.]+) Gb/sec")


def links(tree: Tree) -> dict[str, Link]:
    """Return each link's ``up``, ``bits_per_s`` and, of InfiniBand and RoCE, ``make``; by interface or device/port.

    An interface without a device behind it (loopback, bridges, containers' ends) is left out. A speed that nobody tells
    is left out, too. Raises `UnavailableError` where there is no link.
    """
    by_name = {name: _card(tree, name) for name in _names(tree, _CARDS) if tree.exists(f"{_CARDS}/{name}/device")}
    for device in _names(tree, _PORTS):
        make = " ".join(filter(None, (_text(tree, f"{_PORTS}/{device}/{file}") for file in ("hca_type", "board_id"))))
        for port in _names(tree, f"{_PORTS}/{device}/ports"):
            by_name[f"{device}/{port}"] = _port(tree, f"{_PORTS}/{device}/ports/{port}") | (
                {"make": make} if make else {}
            )
    if not by_name:
        raise UnavailableError("no network card")
    return by_name


def _card(tree: Tree, name: str) -> Link:
    speed = _text(tree, f"{_CARDS}/{name}/speed")  # an error while the link is down, and of drivers that do not know it
    link: Link = {"up": _text(tree, f"{_CARDS}/{name}/operstate") in _UP}
    return link | ({"bits_per_s": int(speed) * 10**6} if speed.isdecimal() and int(speed) > 0 else {})


def _port(tree: Tree, place: str) -> Link:
    rate = _RATE.match(_text(tree, f"{place}/rate"))
    state = _text(tree, f"{place}/state").partition(":")[2].strip()
    return {"up": state == "ACTIVE", **({"bits_per_s": round(float(rate[1]) * 1e9)} if rate else {})}


def _names(tree: Tree, path: str) -> list[str]:
    try:
        return tree.names(path)
    except OSError:
        return []


def _text(tree: Tree, path: str) -> str:
    try:
        return tree.text(path).strip()
    except OSError:
        return ""
