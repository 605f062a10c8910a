"""Findings: results of a stage that need a person's attention, including unmasked values of masked columns."""

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.lake.store.lake import Lake
from ranklake.quality.results import RESULTS, CheckResult
from ranklake.retention.plans.mask_proof import Proof

_SHOWN: Final = 3


class FindingsError(RanklakeError):
    """A stage finished with findings: its flow ends Failed, its command exits 1. `done` is the stage's result.

    `what` may have several lines; those after the first become its `others`.
    """

    exit_code = 1

    def __init__(self, done: dict[str, Any], what: str, *, hint: str = "") -> None:
        first, *rest = what.split("\n")
        super().__init__(first, hint=hint or (f"and {len(rest):,} more" if rest else ""))
        self.others = tuple(map(RanklakeError, rest))
        self.done = done


def first_few(texts: Sequence[str]) -> str:
    """Return the first three texts, and the number of others.

    >>> first_few(["a", "b"]), first_few(["a", "b", "c", "d"])
    ('a; b', 'a; b; c and 1 more')
    """
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return f"{'; '.join(texts[:_SHOWN])}{more}"


_SUITE: Final = "masks"


def with_masks(context: Context, lake: Lake, kinds: Collection[str], summary: dict[str, Any]) -> dict[str, Any]:
    """Add verification of masks, by samples of tables of some kinds, to the summary of a check.

    If a key or file cannot be read, the result is an error; it is not raised, so that results of checks are still
    reported.
    """
    tables = [contract.table for contract in lake.contracts().values() if contract.kind in kinds]
    try:
        results = _results(context.mask_proofs(lake, tables), summary["check_run"])
    except RanklakeError as error:
        results = [_result(RESULTS, None, "errored", f"masks cannot be proven: {error}", summary["check_run"])]
    if not results:
        return summary
    counts = Counter(summary["checks"]) + Counter(result.status for result in results)
    unsound = [*summary["unsound"], *(result.plain() for result in results)]
    return {**summary, "passed": False, "checks": dict(sorted(counts.items())), "unsound": unsound}


def _results(proofs: Sequence[Proof], check_run: str) -> list[CheckResult]:
    return [
        _result(proof.table, proof, "failed", f"{proof.problem}; {proof.hint}", check_run)
        for proof in proofs
        if proof.status == "unmasked"
    ]


def _result(table: str, proof: Proof | None, status: str, message: str, check_run: str) -> CheckResult:
    """Return a row like a check's result; no table stores it, since no partition's state depends on it."""
    now = datetime.now(UTC)
    return CheckResult(
        check_run=check_run,
        table=table,
        partition_date=(proof and proof.first) or now.date(),
        table_version=0,
        suite=_SUITE,
        expectation="MaskProof",
        column=proof.column if proof else None,
        check_id=f"{proof.column}_masked" if proof else _SUITE,
        severity="error",
        status=status,
        rows_checked=proof.values if proof else None,
        rows_failed=proof.unmasked if proof else None,
        failed_ratio=proof.unmasked / proof.values if proof else None,
        observed=None,
        message=message,
        quarantined_rows=0,
        gx_version="",
        files_sha256="",
        ts=now,
    )
