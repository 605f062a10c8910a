"""The chart library: Vega and Vega-Lite as one file of JavaScript, from the package vl-convert-python."""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from ranklake.errors import RanklakeError

PACKAGE: Final = "vl-convert-python"


class NoChartLibraryError(RanklakeError):
    """The package that brings the chart library is not installed."""


def library_name() -> str:
    """Return the name of the file, which changes with the library. Raises `NoChartLibraryError`."""
    try:
        return f"vega-{version(PACKAGE)}.js"
    except PackageNotFoundError:
        raise NoChartLibraryError(f"{PACKAGE} is not installed", hint="pip install 'ranklake[report]'") from None


def library() -> bytes:
    """Return the file; making it takes seconds, so ask only where a site does not have it yet."""
    code: str = importlib.import_module("vl_convert").javascript_bundle()
    return code.encode()
