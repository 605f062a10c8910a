"""Frameworks: one line each. See docs/frameworks.md; `ranklake.capture.autolog` picks what is there.

Each module imports its framework, so it is imported only by whoever uses that.
"""

from ranklake.capture.frameworks.autolog import autolog

__all__ = ["autolog"]
