"""The Python of a migration: its text, and whether it may be run here."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ranklake.lake.migrations.steps.step import MigrationError
from ranklake.lake.store.reachability import LakeError


class UntrustedCodeError(LakeError):
    """Python that a lake keeps, and no folder here has: who may write to the lake could have put it there."""


@dataclass(frozen=True, slots=True)
class Code:
    """A file of Python with functions of rows.

    Attributes
    ----------
    is_trusted
        Whether it is of this release, or of the folder of contracts that is configured here.
    """

    text: str
    path: str
    is_trusted: bool

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function of it. Raises `UntrustedCodeError`, and `MigrationError` where there is none."""
        if not self.is_trusted:
            what = "rows need a function of this file, and it runs only where your folder of contracts has it"
            hint = "name the folder: overlay under [contracts], or --contracts"
            raise UntrustedCodeError(what, where=self.path, hint=hint)
        found = _namespace(self.text, self.path).get(name)
        if not callable(found):
            raise MigrationError(f"it has no function {name!r}", where=self.path, hint="write it, or correct the step")
        return found  # type: ignore[no-any-return]


@lru_cache(maxsize=64)
def _namespace(text: str, path: str) -> dict[str, Any]:
    found: dict[str, Any] = {"__name__": "ranklake_migration"}
    exec(compile(text, path, "exec"), found)  # noqa: S102 - trusted: see `Code`
    return found
