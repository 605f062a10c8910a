"""Limits of devices, and the meaning of XIDs with NVIDIA's recommended action.

The data are in `limits.csv` (warning temperature, NVLinks, PCIe) and `xids.csv`; each row has its source. A device that
is not listed has no limits. An empty cell is no limit.
"""

import csv
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

import pyarrow as pa

from ranklake.detection.declaration import Severity
from ranklake.lake.rollups.peaks import devices, name_key

ACTIONS: Final = {
    "IGNORE": "no action",
    "RESTART_APP": "restart the application",
    "RESET_GPU": "drain the node and reset the GPU",
    "RESTART_BM": "drain the node and reboot it",
    "RESTART_VM": "restart the virtual machine",
    "WORKFLOW_XID_45": "look at the XID before it; if there is none, restart Fabric Manager",
    "WORKFLOW_XID_48": "reset the GPU; with XID 63 or 64, drain the node first",
    "WORKFLOW_NVLINK_ERR": "drain the node; look at its NVLink connections and run diagnostics",
    "WORKFLOW_NVLINK5_ERR": "decode the link's status by NVIDIA's catalog; drain the node if the link stays down",
    "XID_154": "do what its own message says",
    "CHECK_MECHANICALS": "look at the board's power cables and seat",
    "UPDATE_SWFW": "update software and firmware",
    "CHECK_UVM": "look at the errors of unified memory beside it; alone, report it to NVIDIA",
    "CONTACT_SUPPORT": "contact NVIDIA's or the vendor's support",
    "": "the catalog names no action: look at the XIDs beside it",
}
"""Text for each of NVIDIA's resolution buckets."""
_SEVERITIES: Final[Mapping[str, Severity]] = {"application": "warning", "secondary": "info", "bus": "critical"}


class XidMeaning(NamedTuple):
    """Meaning of an XID.

    Attributes
    ----------
    description
        NVIDIA's description.
    kind
        The faulty part: application, bus, device, firmware, link, memory; ``secondary`` if it follows another XID.
    action, action_text
        NVIDIA's bucket for the immediate action, and its text.
    severity
        ``info`` if NVIDIA says to ignore it, ``warning`` for applications, ``critical`` for the bus, else ``error``.
    """

    description: str
    kind: str
    action: str
    action_text: str
    severity: Severity


UNKNOWN_XID: Final = XidMeaning("not in the catalog", "unknown", "", "look it up in NVIDIA's XID catalog", "error")


@cache
def xid_meanings() -> Mapping[int, XidMeaning]:
    """Return the meanings of XIDs by number.

    >>> xid_meanings()[79].action_text
    'drain the node and reboot it'
    """
    return {
        int(row["xid"]): XidMeaning(
            row["description"],
            row["class"],
            row["action"],
            ACTIONS[row["action"]],
            "info" if row["action"] == "IGNORE" else _SEVERITIES.get(row["class"], "error"),
        )
        for row in _csv("xids.csv")
    }


@cache
def limits() -> pa.Table:
    """Return the limits of devices as a table for SQL, by `name_key` of each of their names; NULL without a limit.

    A name of several devices has only those limits that are equal for all of them.
    """
    by_device = {row["device"]: row for row in _csv("limits.csv")}
    by_key: dict[str, list[dict[str, str]]] = {}
    for device in devices():
        for key in dict.fromkeys(map(name_key, device.names)):
            by_key.setdefault(key, []).append(by_device.get(device.name, {}))
    numbers = ("warn_celsius", "nvlink_links", "pcie_lanes", "pcie_generation")
    rows = [{"name_key": key, **{name: _common_value(rows, name) for name in numbers}} for key, rows in by_key.items()]
    schema = pa.schema([("name_key", pa.string()), *((name, pa.int64()) for name in numbers)])
    return pa.Table.from_pylist(rows, schema=schema)


def _common_value(rows: list[dict[str, str]], name: str) -> int | None:
    values = {row.get(name, "") for row in rows}
    return int(values.pop()) if len(values) == 1 and values != {""} else None


def _csv(name: str) -> list[dict[str, str]]:
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
