"""The function ``unsealed(text)`` of SQL: what a column under keys of people says, for who has the keys and no role."""

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.lake.query.engine import SessionContext, udf
from ranklake.lake.store.governance import unsealer

if TYPE_CHECKING:
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.store import Lake

CLEAR: Final = "unsealed"


class Clear:
    """The function, as far as a query may use it.

    Raises `ranklake.retention.subjects.store.SubjectKeysError` where the query asks for it, and the keys are not there.
    """

    def __init__(self, lake: "Lake", text: str, role: "Role | None") -> None:
        self._function: Any = None
        if role is None and CLEAR in text.lower():
            self._function = udf(unsealer(lake), [pa.string()], pa.string(), "stable", name=CLEAR)

    def put(self, ctx: SessionContext) -> None:
        """Have a session know it."""
        if self._function is not None:
            ctx.register_udf(self._function)
