"""Certificates: what an erasure did and what a search found afterwards, in a file that verifies anywhere.

    certificates/<sha256>.json     named by the digest of its bytes; the audit trail has the name

It holds no value that was erased, nor a row. Whoever has the values, the keys of those who approved, or the lake, can
verify more of it; nothing of it has to be believed for lying where it does.
"""

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from ranklake.errors import RanklakeError
from ranklake.lake.audit.proof import prove
from ranklake.lake.audit.trail import trail
from ranklake.lake.plans.action_plan import QUARANTINED
from ranklake.lake.plans.plan import read_plan
from ranklake.lake.store.lake_config import SIGNED
from ranklake.lake.store.ssh_signatures import SignatureError, load_signers, verify
from ranklake.lake.tables.tables import delta_table
from ranklake.retention.erasure.plan import PLACE, key_store, keys_left
from ranklake.retention.erasure.search import summarize
from ranklake.retention.erasure.subject import Reach, why_it_stays
from ranklake.retention.proposals.approvals import normalize_name
from ranklake.retention.proposals.erasures import CERTIFIED, ERASURES, Erasure, Item
from ranklake.retention.proposals.identities import DIGEST, Statement, lake_identity
from ranklake.retention.proposals.proposals import Step, digest_of, recorded_actions
from ranklake.retention.subjects.keys import known_columns

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Progress
    from ranklake.lake.store.catalog import Catalog
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.ssh_signatures import Signers
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables
    from ranklake.retention.erasure.places import PlaceResult
    from ranklake.retention.erasure.search import FileMatches
    from ranklake.retention.erasure.subject import Subject


FOLDER: Final = "certificates"
FORMAT: Final = "ranklake erasure certificate 1"
_LIBRARIES: Final = ("ranklake", "deltalake", "pyarrow")


class NoCertificateError(RanklakeError):
    """An erasure without a certificate, or a file that is none."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate.

    Attributes
    ----------
    facts
        All that it says; plain JSON values.
    """

    facts: Mapping[str, Any]

    @property
    def raw(self) -> bytes:
        """Its bytes."""
        return json.dumps(self.facts, sort_keys=True, indent=1).encode() + b"\n"

    @property
    def name(self) -> str:
        """Digest of its bytes, by which it is named."""
        return hashlib.sha256(self.raw).hexdigest()

    @property
    def path(self) -> str:
        """Where it lies in the lake."""
        return f"{FOLDER}/{self.name}.json"

    @property
    def is_clean(self) -> bool:
        """Whether the search found nothing but what stays by rule."""
        return bool(self.facts["search"]["is_clean"])

    @property
    def unsearched(self) -> int:
        """How many files could not be searched."""
        return sum(int(fact["files"]) for fact in self.facts["search"]["unsearched"])

    @classmethod
    def parse(cls, raw: bytes, where: str) -> "Certificate":
        """Return the certificate of a file's bytes. Raises `NoCertificateError`."""
        try:
            facts = json.loads(raw)
            is_one = isinstance(facts, dict) and facts.get("format") == FORMAT
        except (ValueError, RecursionError):
            is_one = False
        if not is_one:
            raise NoCertificateError(
                "not a certificate of an erasure", where=where, hint="name a file of certificates/"
            )
        return cls(facts)


def certify(
    reach: Reach,
    subject: "Subject",
    erasure: Erasure,
    done: "Sequence[PlaceResult]",
    *,
    progress: "Progress | None" = None,
) -> Certificate:
    """Search all anew, write down what was done and found, and return it."""
    lake = reach.lake
    every = list(reach.each(subject, progress))
    left = [one for one in every if not (one.counts and _may_stay(lake.catalog, subject, one))]
    stays = [one for one in every if one.counts and _may_stay(lake.catalog, subject, one)]
    traces, kept = summarize(left, subject.sought), summarize(stays, subject.sought)
    keys = [{"place": PLACE, "where": uri, "files": 1, "count": 1} for uri in keys_left(lake, subject)]
    facts = {
        "format": FORMAT,
        "lake": lake_identity(lake.store),
        "erasure": erasure.name,
        "subject": {"kind": subject.kind, "scrypt_sha256": subject.sha256},
        "items_sha256": erasure.items_sha256,
        "items": [{**asdict(item), "partition_date": _iso(item.partition_date)} for item in erasure.items],
        "plan": erasure.plan,
        "applied": None if erasure.applied is None else erasure.applied.isoformat(),
        "steps": [_step(step) for step in _steps(lake.tables, erasure)],
        "files": _files(lake.store, erasure),
        "places": [one.plain() for one in done],
        "keys": _keys(lake),
        "search": {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "files": len([one for one in every if not one.source.is_folder]),
            "matched": subject.rule,
            "is_clean": not traces.traces and not keys,
            "found": [*map(_trace_facts, traces.traces), *keys],
            "unsearched": [_trace_facts(one) for one in traces.unsearched],
            "stays": [_trace_facts(one) for one in kept.traces],
        },
        "versions": {**{name: version(name) for name in _LIBRARIES}, "python": platform.python_version()},
    }
    made = Certificate(facts)
    lake.put_if_absent(made.path, made.raw)
    return made


def certificates(store: "Store", name: str) -> list[Certificate]:
    """Return the certificates of an erasure, the oldest first. Raises `NoCertificateError` for a damaged one."""
    result = []
    for path in sorted(store.fs.find(store.path(FOLDER))):
        raw = store.fs.cat_file(path)
        certificate = Certificate.parse(raw, path)
        if hashlib.sha256(raw).hexdigest() != path.rpartition("/")[2].removesuffix(".json"):
            raise NoCertificateError("the certificate does not have the digest of its name", where=path)
        if certificate.facts["erasure"] == name:
            result.append(certificate)
    return sorted(result, key=lambda certificate: certificate.facts["search"]["at"])


def _may_stay(catalog: "Catalog", subject: "Subject", matches: "FileMatches") -> bool:
    """Return whether a file may hold what it holds: accounting tables, and other runs' words about a run."""
    if why_it_stays(catalog, subject, matches):
        return True
    columns = {where for where in matches.counts if where.startswith("column ")}
    return subject.run is not None and columns == set(matches.counts) and "column run" not in columns


def _keys(lake: "Lake") -> dict[str, Any]:
    """Return which columns are under keys of subjects, and the places in which keys were looked for."""
    store = key_store(lake)
    places = [] if store is None else [place.uri for place in store.places]
    return {"columns": sorted(known_columns(lake.store)), "places": places}


def _steps(tables: "Tables", erasure: Erasure) -> Iterable[Step]:
    rows = recorded_actions(tables, ERASURES).get(erasure.name, {})
    return sorted((step for some in rows.values() for step in some), key=lambda step: step.seq)


def _step(step: Step) -> dict[str, Any]:
    return {**step.row, "ts": step.ts.isoformat(), "details": dict(step.details)}


def _files(store: "Store", erasure: Erasure) -> dict[str, Any]:
    """Return which files of tables went and came, with rows, bytes and digests, and the versions of tables now."""
    plan = read_plan(store, erasure.plan) if erasure.plan is not None else None
    body = plan.body if plan is not None else {"remove": {}, "add": [], "facts": {}}
    tables = sorted({*body["remove"], *(row["table"] for row in body["add"])})
    handles = {table: delta_table(store, table) for table in tables}
    gone = [
        {"table": table, "path": row["path"], "rows": row["num_records"], "bytes": row["size_bytes"]}
        for table, rows in body["remove"].items()
        for row in rows
    ]
    came = [
        {"table": row["table"], "path": row["path"], "rows": row["rows"], "bytes": row["size_bytes"]}
        for row in body["add"]
    ]
    raw = [one for days in body["facts"].get(QUARANTINED, {}).values() for some in days.values() for one in some]
    versions = {table: handle.version() for table, handle in handles.items() if handle is not None}
    return {"removed": gone, "added": came, "raw_bytes_removed": sorted(raw), "table_versions": versions}


def _trace_facts(trace: Any) -> dict[str, Any]:  # noqa: ANN401 - a trace
    return {"place": trace.place, "where": trace.where, "files": trace.files, "count": trace.count}


def _iso(day: date | None) -> str | None:
    return None if day is None else day.isoformat()


Faults = list[str]


def verify_alone(certificate: Certificate, name: str) -> Faults:
    """Return the faults of a certificate by itself.

    Parameters
    ----------
    name
        The digest that it is named by; empty where that is not known.
    """
    facts = certificate.facts
    try:
        items = [
            Item(
                **{
                    **fact,
                    "partition_date": None
                    if fact["partition_date"] is None
                    else date.fromisoformat(fact["partition_date"]),
                }
            )
            for fact in facts["items"]
        ]
        steps = list(_listed_steps(facts))
        search, erasure, digest = facts["search"], facts["erasure"], facts["items_sha256"]
        is_clean, left = search["is_clean"], search["found"]
    except (KeyError, TypeError, ValueError):
        return ["it lacks what every certificate has"]
    approvers = {normalize_name(step.actor) for step in steps if step.action == ERASURES.approve}
    others = {normalize_name(step.actor) for step in steps if step.action == ERASURES.begin}
    alone = any(step.details.get("single_operator") for step in steps)
    faults = {
        "its bytes do not have the digest of its name": bool(name) and certificate.name != name,
        "its items are not those that its name stands for": Erasure.of_items(items).name != erasure,
        "its items do not have the digest that was approved": digest_of(asdict(item) for item in items) != digest,
        "it says that nothing was left, and what": bool(is_clean) == bool(left),
        "something was left": not is_clean,
        "nobody approved it": not approvers,
        "nobody applied it": not others or facts.get("plan") is None,
        "whoever approved it applied it": bool(approvers) and approvers <= others and not alone,
        "what was approved had other items": any(step.details.get(DIGEST, digest) != digest for step in steps),
    }
    return [what for what, wrong in faults.items() if wrong]


def verify_signatures(certificate: Certificate, signers_file: str) -> Faults:
    """Return the faults of the signatures of those who proposed, approved and applied, by their keys."""
    signers = load_signers(signers_file)
    wanted = (ERASURES.propose, ERASURES.approve, ERASURES.begin)
    return [
        f"row {step.seq} of the audit trail ({step.action}): {wrong}"
        for step in _listed_steps(certificate.facts)
        if step.action in wanted and (wrong := _signature_fault(step, signers))
    ]


def verify_with_lake(certificate: Certificate, lake: "Lake") -> Faults:
    """Return what of a certificate a lake does not bear out: identity, trail, rows of the trail, files that went."""
    facts = certificate.facts
    proof = prove(lake)
    rows = trail(lake.tables)
    recorded = {(row["seq"], row["action"], row["actor"]) for row in rows}
    certified = [row for row in rows if row["action"] == CERTIFIED and certificate.name in (row["details"] or "")]
    there = [
        fact["path"]
        for fact in facts["files"]["removed"]
        if lake.fs.exists(lake.path("tables", fact["table"], fact["path"]))
    ]
    faults = {
        "it is of another lake": lake_identity(lake.store) != facts["lake"],
        f"the audit trail is broken: {proof.why}": not proof.whole,
        "the audit trail does not know it": not certified,
        "the audit trail has other steps": not {(one["seq"], one["action"], one["actor"]) for one in facts["steps"]}
        <= recorded,
        f"{len(there)} files that went are there": bool(there),
    }
    return [what for what, wrong in faults.items() if wrong]


def _day(text: str | None) -> date | None:
    return None if text is None else date.fromisoformat(text)


def _listed_steps(facts: Mapping[str, Any]) -> Iterable[Step]:
    for fact in facts["steps"]:
        yield Step(**{**fact, "ts": datetime.fromisoformat(fact["ts"])})


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
