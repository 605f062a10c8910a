"""Users' suites that are for no table that is checked: results of their own, so that none is silently left out."""

import hashlib
import json
from datetime import datetime
from typing import TYPE_CHECKING, Final

from ranklake.lake.plans.ledger import append_own
from ranklake.quality.engine import gx_version
from ranklake.quality.results import RESULTS, CheckResult, standing
from ranklake.quality.suite import OWN
from ranklake.quality.suites.own import OwnSuites, problems
from ranklake.quality.tables import KINDS

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake

_NO_FILES: Final = hashlib.sha256().hexdigest()


def unplaced(
    lake: "Lake", own: OwnSuites, check_run: str, when: datetime
) -> tuple[tuple[CheckResult, ...], tuple[CheckResult, ...]]:
    """Write down suites of no table as errored, unless the same ones were; return those results, fresh and earlier.

    They stand under ``quality_results`` itself, for lack of a table that they are about.
    """
    tables = [name for name, one in lake.contracts().items() if one.kind in KINDS]
    wrong = problems(own, tables)
    if not wrong:
        return (), ()
    digest = hashlib.sha256(json.dumps(wrong, sort_keys=True).encode()).hexdigest()[:12]
    suite = f"unplaced suites {digest}"
    earlier = [one for one in standing(lake, [RESULTS]).values() if one.suite == suite]
    if earlier:
        return (), earlier[-1].open
    found = tuple(
        CheckResult(
            check_run=check_run,
            table=RESULTS,
            partition_date=when.date(),
            table_version=0,
            suite=suite,
            expectation="UserSuite",
            column=None,
            check_id=f"{OWN}{name}",
            severity="error",
            status="errored",
            rows_checked=None,
            rows_failed=None,
            failed_ratio=None,
            observed=None,
            message=why,
            quarantined_rows=0,
            gx_version=gx_version(),
            files_sha256=_NO_FILES,
            ts=when,
            on_fail="record",
        )
        for name, why in sorted(wrong.items())
    )
    append_own(lake, RESULTS, lambda _: [one.row() for one in found])
    return found, ()
