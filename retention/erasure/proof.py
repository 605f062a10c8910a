"""Verifies certificates: by themselves, by the keys of those who approved, by the values, by the lake."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from ranklake.lake.audit.proof import prove
from ranklake.lake.audit.trail import trail
from ranklake.lake.store.allowed_signers import load_signers
from ranklake.lake.store.approvals import SIGNED
from ranklake.lake.store.ssh_signatures import SignatureError, verify
from ranklake.retention.erasure.certificate import Certificate
from ranklake.retention.proposals.erasures import CERTIFIED, ERASURES, Item, erasure_name
from ranklake.retention.proposals.proposals import digest_of
from ranklake.retention.proposals.standing import plain
from ranklake.retention.proposals.statements import DIGEST, Statement, lake_identity
from ranklake.retention.proposals.steps import Step

if TYPE_CHECKING:
    from ranklake.lake.store.allowed_signers import Signers
    from ranklake.lake.store.store import Lake

Faults = list[str]


def verify_alone(found: Certificate, name: str) -> Faults:
    """Return what is wrong with a certificate by itself.

    Parameters
    ----------
    name
        The digest that it is named by; empty where that is not known.
    """
    facts = found.facts
    try:
        items = [
            Item(
                **{
                    **one,
                    "partition_date": None
                    if one["partition_date"] is None
                    else date.fromisoformat(one["partition_date"]),
                }
            )
            for one in facts["items"]
        ]
        steps = list(_steps(facts))
        search, erasure, digest = facts["search"], facts["erasure"], facts["items_sha256"]
        is_clean, left = search["is_clean"], search["found"]
    except (KeyError, TypeError, ValueError):
        return ["it lacks what every certificate has"]
    approvers = {plain(step.actor) for step in steps if step.action == ERASURES.approve}
    others = {plain(step.actor) for step in steps if step.action == ERASURES.begin}
    alone = any(step.details.get("single_operator") for step in steps)
    faults = {
        "its bytes do not have the digest of its name": bool(name) and found.name != name,
        "its items are not those that its name stands for": erasure_name(items) != erasure,
        "its items do not have the digest that was approved": digest_of(asdict(item) for item in items) != digest,
        "it says that nothing was left, and what": bool(is_clean) == bool(left),
        "something was left": not is_clean,
        "nobody approved it": not approvers,
        "nobody applied it": not others or facts.get("plan") is None,
        "whoever approved it applied it": bool(approvers) and approvers <= others and not alone,
        "what was approved had other items": any(step.details.get(DIGEST, digest) != digest for step in steps),
    }
    return [what for what, wrong in faults.items() if wrong]


def verify_signatures(found: Certificate, signers_file: str) -> Faults:
    """Return what is wrong with the signatures of those who proposed, approved and applied, by their keys."""
    signers = load_signers(signers_file)
    wanted = (ERASURES.propose, ERASURES.approve, ERASURES.begin)
    return [
        f"row {step.seq} of the audit trail ({step.action}): {wrong}"
        for step in _steps(found.facts)
        if step.action in wanted and (wrong := _signature_fault(step, signers))
    ]


def verify_with_lake(found: Certificate, lake: "Lake") -> Faults:
    """Return what of a certificate a lake does not bear out: identity, trail, rows of the trail, files that went."""
    facts = found.facts
    proof = prove(lake)
    rows = trail(lake)
    said = {(row["seq"], row["action"], row["actor"]) for row in rows}
    told = [row for row in rows if row["action"] == CERTIFIED and found.name in (row["details"] or "")]
    there = [
        one["path"]
        for one in facts["files"]["removed"]
        if lake.fs.exists(lake.path("tables", one["table"], one["path"]))
    ]
    faults = {
        "it is of another lake": lake_identity(lake) != facts["lake"],
        f"the audit trail is broken: {proof.why}": not proof.whole,
        "the audit trail does not know it": not told,
        "the audit trail has other steps": not {(one["seq"], one["action"], one["actor"]) for one in facts["steps"]}
        <= said,
        f"{len(there)} files that went are there": bool(there),
    }
    return [what for what, wrong in faults.items() if wrong]


def _day(text: str | None) -> date | None:
    return None if text is None else date.fromisoformat(text)


def _steps(facts: Mapping[str, Any]) -> Iterable[Step]:
    for one in facts["steps"]:
        yield Step(**{**one, "ts": datetime.fromisoformat(one["ts"])})


def _signature_fault(step: Step, signers: "Signers") -> str:
    signature = step.details.get("signature")
    if step.details.get("mode") != SIGNED or not isinstance(signature, str):
        return "it is not signed"
    try:
        verify(Statement.of_row(step.row, step.details).text, signature, signers, step.actor, step.ts)
    except SignatureError as error:
        return error.what
    except (KeyError, TypeError, ValueError):
        return "it does not say what was signed"
    return ""
