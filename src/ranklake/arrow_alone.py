"""Arrow alone: pyarrow without pandas, in a process that never hands it a frame or a series.

pyarrow imports pandas, wherever that is installed, with the first value that it converts, to see whether it was handed
a series. That takes a quarter of the time of a short command; and in some places a Ctrl-C is lost meanwhile, since an
exception cannot leave them. pyarrow remembers the answer, so it is asked once while there is no pandas for it. What
needs pandas by name (`to_pandas`) imports it all the same.
"""

import sys
from importlib.machinery import ModuleSpec
from typing import Final

import pyarrow as pa

_HIDDEN: Final = "pandas"


class _PandasBlocker:
    """A finder of modules before all others, to which there is no pandas."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Refuse pandas; leave all else to the next finder."""
        del path, target
        if name == _HIDDEN:
            raise ModuleNotFoundError(f"no module named {name!r}", name=name)
        return None


def leave_pandas_out() -> None:
    """Have pyarrow do without pandas from now on, unless that is imported already."""
    if _HIDDEN in sys.modules:
        return
    sys.meta_path.insert(0, _PandasBlocker)
    try:
        pa.scalar(0)
    finally:
        sys.meta_path.remove(_PandasBlocker)
