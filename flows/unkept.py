"""Flows whose failures are not written: Prefect pickles what a flow raises, whatever `persist_result` says."""

import logging
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar, cast

from prefect.states import Failed, format_exception

from ranklake.errors import RanklakeError
from ranklake.flows.retrying import lost_server

_LOG: Final = logging.getLogger(__name__)
Given = ParamSpec("Given")
Made = TypeVar("Made")


def unkept(run: Callable[Given, Coroutine[Any, Any, Made]]) -> Callable[Given, Coroutine[Any, Any, Made]]:
    """Have a flow's function end in a failed state rather than raise.

    Whoever called the flow meets the exception all the same, in the process in which it ran. No file has it: what a
    check saw may be somebody's, and no erasure looks into Prefect's storage unasked.
    """

    @wraps(run)
    async def ended(*args: Given.args, **options: Given.kwargs) -> Made:
        try:
            return await run(*args, **options)
        except Exception as error:  # noqa: BLE001 - whatever it is, Prefect would write it
            lost = lost_server(error)
            if lost is not None:
                _LOG.error("Prefect's server does not answer (%s); the next run goes on where this one stopped", lost)
            elif not isinstance(error, RanklakeError):
                _LOG.exception("the flow failed")
            message = f"Flow run encountered an exception: {format_exception(error)}"
            return cast("Made", Failed(data=error, message=message))  # Prefect takes a state for how it ended

    return ended
