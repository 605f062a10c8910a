"""Methods of a run that are those of its parts: one signature and one documentation, where the work is done."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

R = TypeVar("R")
T = TypeVar("T")
V = TypeVar("V")
P = ParamSpec("P")


def handed_on(
    name: str, part: Callable[[R], T], method: Callable[Concatenate[T, P], V]
) -> Callable[Concatenate[R, P], V]:
    """Return a method, called `name`, that calls one of a part with what it is given.

    ``help``, completion and type checkers show the part's parameters and documentation.
    """

    @wraps(method)
    def call(run: R, /, *args: P.args, **kwargs: P.kwargs) -> V:
        return method(part(run), *args, **kwargs)

    call.__name__, call.__qualname__ = name, f"Run.{name}"
    return call
