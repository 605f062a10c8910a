"""Counts and sizes in words."""

from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP: Final = 1024


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as ``1 row`` and ``2,000 rows``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def size_text(size: float) -> str:
    """Return a number of bytes for people."""
    for unit in _UNITS:
        if size < _STEP or unit == _UNITS[-1]:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= _STEP
    raise AssertionError
