"""Hardware: ports, clocks, temperatures and power of a host, from /sys. Slow to read: firmware answers some of it."""

import re
from typing import Any, Final

from ranklake.capture.samplers.reading import Tree, UnavailableError

Columns = dict[str, Any]

_PORTS: Final = "sys/class/infiniband"
_WORD_BYTES: Final = 4  # data counters count 32-bit words: InfiniBand Architecture Specification, PortCounters
_COUNTERS: Final = {
    "infiniband_receive_bytes": ("counters/port_rcv_data", _WORD_BYTES),
    "infiniband_transmit_bytes": ("counters/port_xmit_data", _WORD_BYTES),
    "infiniband_receive_packet_count": ("counters/port_rcv_packets", 1),
    "infiniband_transmit_packet_count": ("counters/port_xmit_packets", 1),
    "infiniband_receive_error_count": ("counters/port_rcv_errors", 1),
    "infiniband_transmit_discard_count": ("counters/port_xmit_discards", 1),
    "infiniband_transmit_wait_count": ("counters/port_xmit_wait", 1),
    "infiniband_symbol_error_count": ("counters/symbol_error", 1),
    "infiniband_link_recovery_count": ("counters/link_error_recovery", 1),
    "infiniband_link_downed_count": ("counters/link_downed", 1),
    "infiniband_out_of_sequence_count": ("hw_counters/out_of_sequence", 1),
    "infiniband_congestion_notification_count": ("hw_counters/rp_cnp_handled", 1),
}
INFINIBAND_COLUMNS: Final = tuple(_COUNTERS)
_CPU_SENSORS: Final = frozenset({"coretemp", "k10temp", "zenpower", "cpu_thermal"})
_PACKAGE: Final = re.compile(r"intel-rapl:\d+")


def infiniband(tree: Tree) -> dict[str, Columns]:
    """Return the counters of each port, with its state and rate, by device/port. A counter it has not got is left out.

    Raises `OSError` where there is no InfiniBand.
    """
    found: dict[str, Columns] = {}
    for device in tree.names(_PORTS):
        for port in tree.names(f"{_PORTS}/{device}/ports"):
            place = f"{_PORTS}/{device}/ports/{port}"
            facts: Columns = {}
            for column, (path, factor) in _COUNTERS.items():
                value = _number(tree, f"{place}/{path}")
                if value is not None:
                    facts[column] = value * factor
            state, rate = _text(tree, f"{place}/state"), _text(tree, f"{place}/rate")
            facts["state"] = state.partition(":")[2].strip() or None
            facts["rate"] = rate or None
            found[f"{device}/{port}"] = facts
    return found


def frequency(tree: Tree) -> Columns:
    """Return the mean clock of the CPUs: as cpufreq has it, else as /proc/cpuinfo says."""
    place = "sys/devices/system/cpu"
    clocks = [_number(tree, f"{place}/{name}/cpufreq/scaling_cur_freq") for name in tree.names(place)]
    hertz = [khz * 1e3 for khz in clocks if khz is not None]
    if not hertz:
        lines = tree.text("proc/cpuinfo").splitlines()
        hertz = [float(line.partition(":")[2]) * 1e6 for line in lines if line.startswith("cpu MHz")]
    return {"cpu_frequency_hz": sum(hertz) / len(hertz)} if hertz else _missing("no CPU tells its clock")


def temperature(tree: Tree) -> Columns:
    """Return the temperature of the warmest CPU package."""
    found = []
    for sensor in tree.names("sys/class/hwmon"):
        place = f"sys/class/hwmon/{sensor}"
        if _text(tree, f"{place}/name") in _CPU_SENSORS:
            inputs = [name for name in tree.names(place) if re.fullmatch(r"temp\d+_input", name)]
            found += [value / 1e3 for name in inputs if (value := _number(tree, f"{place}/{name}")) is not None]
    return {"cpu_temperature_celsius": max(found)} if found else _missing("no sensor of a CPU")


def power(tree: Tree) -> Columns:
    """Return the power that the host's own meter tells."""
    for sensor in tree.names("sys/class/hwmon"):
        place = f"sys/class/hwmon/{sensor}"
        if _text(tree, f"{place}/name") == "power_meter":
            return {"power_watts": tree.number(f"{place}/power1_average") / 1e6}
    return _missing("no power meter")


class Energy:
    """The energy of all CPU packages, whose counters begin again every few minutes."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._joules = 0.0

    def read(self, tree: Tree) -> Columns:
        """Return what was drawn since the first reading, and what the counters had then. Raises `OSError`."""
        place = "sys/class/powercap"
        packages = [name for name in tree.names(place) if _PACKAGE.fullmatch(name)]
        for name in packages:
            now = tree.number(f"{place}/{name}/energy_uj")
            spent = now - self._last.get(name, 0)
            if spent < 0:
                spent += tree.number(f"{place}/{name}/max_energy_range_uj")
            self._joules += spent / 1e6
            self._last[name] = now
        return {"energy_joules": self._joules} if packages else _missing("no package tells its energy")


def _missing(why: str) -> Columns:
    raise UnavailableError(why)


def _text(tree: Tree, path: str) -> str:
    try:
        return tree.text(path).strip()
    except OSError:
        return ""


def _number(tree: Tree, path: str) -> int | None:
    try:
        return tree.number(path)
    except (OSError, ValueError):
        return None
