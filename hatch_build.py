"""Hatch's build hook: a wheel carries the hot path in C where it can be compiled, and is of Python alone elsewhere.

``RANKLAKE_NATIVE=0`` builds the wheel of Python alone (``py3-none-any``). ``RANKLAKE_NATIVE=1`` fails where it cannot
be compiled, as releases do. Editable installs are left alone: ``make native`` compiles there.
"""

import os
import runpy
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeHook(BuildHookInterface[Any]):
    """Compiles into a folder of its own, so that nothing is left in the source tree."""

    folder: str | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tag the wheel for this interpreter and platform; without a compiler, warn and go on."""
        wanted = os.environ.get("RANKLAKE_NATIVE")
        if version == "editable" or wanted == "0":
            return
        # by its path: ranklake is not installed yet, nor what it needs
        compiling = runpy.run_path(str(Path(self.root, "capture", "build.py")))
        self.folder = tempfile.mkdtemp()
        try:
            module = compiling["build"](Path(self.folder))
        except compiling["BuildError"] as error:
            shutil.rmtree(self.folder)
            self.folder = None
            if wanted == "1":
                raise
            self.app.display_warning(f"ranklake: without the hot path in C: {error}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"][str(module)] = f"ranklake/capture/common/{module.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled: the wheel has it."""
        del version, build_data, artifact_path
        if self.folder is not None:
            shutil.rmtree(self.folder)
