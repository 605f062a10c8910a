"""Frameworks: record training by Lightning, Transformers, Accelerate or DeepSpeed with one line (docs/frameworks.md).

Each module imports its framework, so import only that of the framework in use. `ranklake.capture.autolog` does so.
"""

from ranklake.capture.frameworks.autolog import autolog

__all__ = ["autolog"]
