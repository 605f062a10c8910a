"""Native: the hot path in C where it was built (see `ranklake.capture.build`), else none.

``RANKLAKE_NATIVE=0`` leaves it out. One that was built from another source, or for an interpreter with a GIL while this
one has none, is left out, too.
"""

import importlib
import os
import sys
import sysconfig
from typing import Any, Final

from ranklake.capture.gaps import LOGGER

VARIABLE: Final = "RANKLAKE_NATIVE"


def load() -> Any | None:  # noqa: ANN401 - a module without stubs
    """Return the compiled module; None if there is none that fits. Never raises."""
    if os.environ.get(VARIABLE) == "0" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    try:
        module = importlib.import_module("ranklake.capture._native")
    except ImportError as error:
        if error.name != "ranklake.capture._native":
            LOGGER.warning("ranklake: the hot path in C cannot be loaded: %s", error)
        return None
    from ranklake.capture.build import digest  # only where something was built

    if digest() != module.SOURCE:
        LOGGER.warning(
            "ranklake: the hot path in C is of another version; run %s -m ranklake.capture.build", sys.executable
        )
        return None
    return module


MODULE: Final = load()
