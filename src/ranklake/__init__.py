"""Telemetry of distributed ML training, kept as governed Delta tables."""

from importlib.metadata import version

__version__ = version("ranklake")
