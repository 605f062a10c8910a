"""Parses the platform name of an MLPerf log: how many nodes, with which device."""

import re
from typing import Final

_NODES: Final = re.compile(r"(\d{1,6})x")
_DEVICES: Final = re.compile(
    r"\d{1,6}x[ _-]?(?:NVIDIA[ _-])?(?:G?B[23]00|GH200|H[12]00|A100|L40S?|V100|MI\d{3}[AX]?)", re.IGNORECASE
)
_DEVICE: Final = re.compile(
    r"(?:^|[ _-]|x\d*)(?:NVIDIA )?(?:(?P<chassis>[HD]GX) )?"
    r"(?P<model>G?B[23]00|GH200|H[12]00|A100|L40S?|V100|MI\d{3}[AX]?)"
    r"(?:[ _-]?(?P<form>SXM|PCIE|NVL))?(?![A-Za-z0-9])", re.IGNORECASE,
)  # fmt: skip
_PLAIN_DEVICE: Final = re.compile(r"G[BH]\d{3}|L40S?|MI\d{3}[AX]?", re.IGNORECASE)
_CUDA: Final = re.compile(r"NVIDIA|Tesla|\b(?:[ABHV]\d{2,3}|G[BH]\d{3}|L40S?|MI\d{3}[AX]?)\b|[HD]GX", re.IGNORECASE)
_NO_ANSWER: Final = re.compile(
    r"\A\W*(?:n/?a|none|null|unknown)?\W*\Z|no devices|not found|failed|error|could ?n.t|unable", re.IGNORECASE
)


def platform_of(text: str) -> tuple[int | None, str | None]:
    """Return nodes and device of a platform's name, such as 64xNVIDIA DGX H100 or 2xXE9680Lx8B200-SXM-180GB.

    In 8xA100-SXM devices are counted, not nodes.
    """
    device = _DEVICE.search(text)
    found = None if _DEVICES.match(text) else _NODES.match(text)
    name = None
    if device:
        parts = (device["chassis"] or "", device["model"], (device["form"] or "").upper())
        name = " ".join(filter(None, parts)).replace("PCIE", "PCIe")
        name = name if " " in name or _PLAIN_DEVICE.fullmatch(name) else None  # there are two kinds of an H100
    return (int(found[1]) if found else None), name


def is_cuda(device: str) -> bool:
    """Return whether a device's name is one that CUDA, or ROCm under its name, drives."""
    return _CUDA.search(device) is not None


def is_no_answer(text: str) -> bool:
    """Whether a fact of the system is what a tool printed that did not know it, such as ``No devices were found``."""
    return _NO_ANSWER.search(text) is not None
