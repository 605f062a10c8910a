"""Keeps pyarrow from importing pandas in processes that pass it no pandas objects.

pyarrow imports an installed pandas with the first value that it converts, to test whether the value is a series. That
takes a quarter of the time of a short command, and a Ctrl-C may be lost during the import. pyarrow caches whether
pandas exists, so it is made to test once while pandas is hidden. Functions that need pandas (`to_pandas`) still import
it.
"""

import sys
from importlib.machinery import ModuleSpec
from typing import Final

import pyarrow as pa

_HIDDEN: Final = "pandas"


class _PandasBlocker:
    """A module finder that hides pandas from the finders after it."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Refuse pandas; leave other modules to the next finder."""
        del path, target
        if name == _HIDDEN:
            raise ModuleNotFoundError(f"no module named {name!r}", name=name)
        return None


def leave_pandas_out() -> None:
    """Keep pyarrow from importing pandas, unless pandas is already imported."""
    if _HIDDEN in sys.modules:
        return
    sys.meta_path.insert(0, _PandasBlocker)
    try:
        pa.scalar(0)
    finally:
        sys.meta_path.remove(_PandasBlocker)
