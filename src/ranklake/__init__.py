"""Telemetry of distributed ML training, kept as governed Delta tables."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str


def __getattr__(name: str) -> str:
    """Return the version, which takes 50 ms to read, only on demand: the agent's workers start every minute."""
    if name == "__version__":
        from importlib.metadata import version

        globals()[name] = result = version("ranklake")
        return result
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
