"""Registers of proposals: a row that no command writes is told of, and acts on nothing."""

import pytest

from ranklake.lake.plans.plan import append_own
from ranklake.lake.store.lake import Lake
from ranklake.retention.proposals.erasures import ERASURES
from ranklake.retention.proposals.registers import ForgedRegisterError, with_time
from ranklake.retention.proposals.releases import RELEASES
from ranklake.retention.proposals.retention_plans import RETENTION_PLANS

REGISTERS = (
    (ERASURES, "erasures", "erasure", "place"),
    (RELEASES, "quality_releases", "release", "item_kind"),
    (RETENTION_PLANS, "retention_plans", "retention_plan", "table"),
)


@pytest.mark.parametrize(("kind", "table", "key", "lacking"), REGISTERS)
def test_an_item_that_lacks_a_value_is_told(tmp_path, kind, table, key, lacking):
    """Whoever may write to the bucket may leave one; every command ends in a line that says where it is."""
    lake = Lake.create(str(tmp_path / "lake"))
    append_own(lake.tables, table, lambda _: with_time([{key: "x-1", "row_kind": "item"}]))
    with pytest.raises(ForgedRegisterError, match=f"{table}: a row lacks {lacking}, so it was not written by a comm"):
        kind.register(lake)
