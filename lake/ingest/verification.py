"""Verifies an unfinished plan that ingests segments or rewrites rows, before it is carried out again."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from ranklake.lake.audit.proof import prove
from ranklake.lake.audit.trail import trail
from ranklake.lake.ingest.disowned import COLUMNS, DISOWN, claim_of
from ranklake.lake.ingest.disowned import TABLE as DISOWNED
from ranklake.lake.ingest.segment_reading import segment_name
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.rules import segment_paths
from ranklake.lake.plans.verification import no_file, refusal, verify_files
from ranklake.lake.store import overlays
from ranklake.printable import printable_name

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.writers import Writers


def verify_ingest(lake: "Lake", plan: "Plan") -> None:
    """Check that the plan reads only from its spool, that the spool is configured, and that signatures are required.

    Raises the error of `ranklake.lake.plans.verification.refusal` if not.
    """
    if lake.config.spools and _root(lake.store, plan.body["spool"]) not in {
        _root(lake.store, uri) for uri in lake.config.spools
    }:
        uri = plan.body["spool"]
        hint = f"if that is a spool of yours, finish it with --spool {uri}; else remove the file"
        raise refusal(lake.store, plan, f"the plan reads another spool: {uri}", hint)
    if plan.body.get("contracts", 0) > overlays.newest(lake.store):
        raise refusal(lake.store, plan, "the plan was made under contracts that the lake does not keep")
    inside = f"{_root(lake.store, plan.body['spool'])}/"
    writers = lake.config.spool.writers
    for row in plan.body["segments"]:
        for path in segment_paths(row):
            if not path.startswith(inside):
                raise refusal(lake.store, plan, f"the plan reads what is not in its spool: {path}")
        if not row.get("refused"):
            _verify_signature(lake.store, writers, plan, row, inside)


def _verify_signature(store: "Store", writers: "Writers", plan: "Plan", row: Mapping[str, Any], inside: str) -> None:
    """Check that the plan requires a signature of a segment if the configuration of its prefix does."""
    relative_path = row["path"].removeprefix(inside)
    configured, name = writers.prefix_of(relative_path), segment_name(row["path"])
    problem = writers.refusal(relative_path, name) if name is not None else ""
    needs_rule = configured is not None and configured.require_signed
    has_rule = configured is not None and _requires_signatures(
        plan.body.get("rules"), row.get("rule"), configured.prefix
    )
    if problem or (needs_rule and not has_rule):
        hint = "if it is your own, finish it under the [[spool.prefixes]] that it was made under; else remove the file"
        message = problem or "the plan asks for no signature where one is required"
        raise refusal(store, plan, f"{message}: {row['path']}", hint)


def _requires_signatures(rules: object, index: object, prefix: str) -> bool:
    """Whether the rule of a plan at an index requires signatures for a prefix."""
    if not isinstance(rules, list) or not isinstance(index, int) or not 0 <= index < len(rules):
        return False
    rule = rules[index]
    return (
        isinstance(rule, dict)
        and rule.get("prefix") == prefix
        and rule.get("signed") is True
        and bool(rule.get("keys"))
    )


def _root(store: "Store", uri: str) -> str:
    return Spool(uri, store.storage).root


def verify_rewrite(lake: "Lake", plan: "Plan") -> None:
    """Check that files have the rows that the plan lists, and that the audit log has each claim to be disowned."""
    verify_files(lake, plan)
    _verify_disowned(lake, plan)


def _verify_disowned(lake: "Lake", plan: "Plan") -> None:
    """Check that a person has recorded each claim that the plan disowns in the audit log."""
    claims: list[str] = []
    for row in plan.body["add"]:
        if row["table"] == DISOWNED:
            path = lake.path("tables", DISOWNED, row["path"])
            try:
                with lake.store.open_file(path, row["size_bytes"]) as source:
                    rows = pq.read_table(source).to_pylist()
            except (FileNotFoundError, pa.ArrowInvalid):
                raise no_file(lake.store, plan, path) from None
            claims += [_claim_text(lake.store, plan, claim) for claim in rows]
    if not claims:
        return
    proof = prove(lake)
    if not proof.whole:
        raise refusal(lake.store, plan, f"the plan would disown, and the audit log is broken: {proof.why}")
    recorded = {row["subject"] for row in trail(lake.tables) if row["action"] == DISOWN}
    for claim in claims:
        if claim not in recorded:
            message = f"the plan would disown what nobody answers for in the audit log: {printable_name(claim)}"
            raise refusal(lake.store, plan, message)


def _claim_text(store: "Store", plan: "Plan", row: Mapping[str, Any]) -> str:
    """Return a claim as text, as in the audit log. The row may lack columns that have no value."""
    try:
        return str(claim_of({**dict.fromkeys(COLUMNS), **row}))
    except (TypeError, ValueError):
        raise refusal(store, plan, "the plan would disown what names no stream") from None
