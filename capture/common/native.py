"""Native: loads the hot path in C if it was built (see `ranklake.capture.build`).

``RANKLAKE_NATIVE=0`` disables it; ``RANKLAKE_NATIVE=1`` warns if it is missing. A build from another version of the
source is not loaded, nor is any build by an interpreter without a GIL.
"""

import hashlib
import importlib
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any, Final

from ranklake.capture.common.gaps import LOGGER

VARIABLE: Final = "RANKLAKE_NATIVE"
SOURCE: Final = Path(__file__).with_name("native.c")


def digest() -> str:
    """Return the SHA-256 of the C source. A build contains the digest of its source, and `load` compares both."""
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()


def load() -> Any | None:  # noqa: ANN401 - a module without stubs
    """Return the compiled module; None if it is missing, disabled or of another version. Never raises."""
    if os.environ.get(VARIABLE) == "0" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    try:
        module = importlib.import_module("ranklake.capture.common._native")
    except ImportError as error:
        if error.name != "ranklake.capture.common._native" or os.environ.get(VARIABLE) == "1":
            LOGGER.warning("ranklake: the hot path in C cannot be loaded: %s", error)
        return None
    if digest() != module.SOURCE:
        LOGGER.warning(
            "ranklake: the hot path in C is of another version; run %s -m ranklake.capture.build", sys.executable
        )
        return None
    return module


MODULE: Final = load()
