"""Failed: marks an exception with the number of the step that it ended.

Only later is it known whether somebody handles it or it ends the run. It is said on the exception itself: whoever kept
the exception meanwhile would keep its frames, and with them the tensors of a step that ran out of memory.
"""

import contextlib
from typing import Final

_NAME: Final = "_ranklake_step"
_TOLD: Final = "_ranklake_told"
_DEEPEST: Final = 8


def note_step(error: BaseException, step: int) -> None:
    """Say on an exception that it ended a step. Of steps within each other, the inner one stays."""
    with contextlib.suppress(Exception):  # one that takes no attributes, or of a class that minds
        if noted_step(error) is None:
            setattr(error, _NAME, step)


def noted_step(error: BaseException) -> int | None:
    """Return the number of the step that an exception, or what it was raised from, ended; None if there is none."""
    one: BaseException | None = error
    for _ in range(_DEEPEST):
        if one is None:
            break
        step = getattr(one, _NAME, None)
        if isinstance(step, int):
            return step
        one = one.__cause__ or one.__context__
    return None


def is_news(error: BaseException, teller: object) -> bool:
    """Say whether it was not asked yet if an exception ended a run; from now on it was.

    A framework tells of an exception, and so do the block that it leaves and the interpreter: it is one failure.
    """
    told: list[int] = getattr(error, _TOLD, [])
    if id(teller) in told:
        return False
    with contextlib.suppress(Exception):
        setattr(error, _TOLD, [*told, id(teller)])
    return True
