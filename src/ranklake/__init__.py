"""Telemetry of distributed ML training, kept as governed Delta tables."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str


def __getattr__(name: str) -> str:
    """Look the version up when it is asked for: the agent's workers start every minute, and looking takes 50 ms."""
    if name == "__version__":
        from importlib.metadata import version

        globals()[name] = result = version("ranklake")
        return result
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
