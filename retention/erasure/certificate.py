"""Certificates of erasures: what was erased and what a search found afterwards, in a file that can be verified alone.

    certificates/<sha256>.json     named by the digest of its bytes; the audit log has the name

A certificate contains no erased value and no row. A reader who also has the values, the approvers' keys or the lake can
verify more. The certificate needs no trust in where it is stored.
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
from ranklake.retention.erasure.subject import Reach, stay_reason
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
    """An erasure has no valid certificate, or a file is no certificate."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate of an erasure.

    Attributes
    ----------
    facts
        Its content as plain JSON values.
    """

    facts: Mapping[str, Any]

    @property
    def raw(self) -> bytes:
        """The certificate as UTF-8 JSON bytes, keys sorted."""
        return json.dumps(self.facts, sort_keys=True, indent=1).encode() + b"\n"

    @property
    def name(self) -> str:
        """SHA-256 of its bytes as hex."""
        return hashlib.sha256(self.raw).hexdigest()

    @property
    def path(self) -> str:
        """Its path in the lake."""
        return f"{FOLDER}/{self.name}.json"

    @property
    def is_clean(self) -> bool:
        """Whether the search found nothing except data that an erasure leaves in place by rule."""
        return bool(self.facts["search"]["is_clean"])

    @property
    def unsearched(self) -> int:
        """Number of files that could not be searched."""
        return sum(int(fact["files"]) for fact in self.facts["search"]["unsearched"])

    @classmethod
    def parse(cls, raw: bytes, where: str) -> "Certificate":
        """Return the certificate in a file's bytes. Raises `NoCertificateError` with `where`, the file's name."""
        try:
            facts = json.loads(raw)
            is_certificate = isinstance(facts, dict) and facts.get("format") == FORMAT
        except (ValueError, RecursionError):
            is_certificate = False
        if not is_certificate:
            raise NoCertificateError(
                "not a certificate of an erasure", where=where, hint="name a file of certificates/"
            )
        return cls(facts)


def certify(
    reach: Reach,
    subject: "Subject",
    erasure: Erasure,
    places: "Sequence[PlaceResult]",
    *,
    progress: "Progress | None" = None,
) -> Certificate:
    """Search everything again, and write and return the certificate. `places` has the results of the erasure."""
    lake = reach.lake
    files = list(reach.search(subject, progress))
    staying = [file for file in files if file.counts and _may_stay(lake.catalog, subject, file)]
    others = [file for file in files if not (file.counts and _may_stay(lake.catalog, subject, file))]
    traces, kept = summarize(others, subject.needles), summarize(staying, subject.needles)
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
        "places": [place.plain() for place in places],
        "keys": _keys(lake),
        "search": {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "files": len([file for file in files if not file.source.is_folder]),
            "matched": subject.rule,
            "is_clean": not traces.traces and not keys,
            "found": [*map(_trace_facts, traces.traces), *keys],
            "unsearched": list(map(_trace_facts, traces.unsearched)),
            "stays": list(map(_trace_facts, kept.traces)),
        },
        "versions": {**{name: version(name) for name in _LIBRARIES}, "python": platform.python_version()},
    }
    certificate = Certificate(facts)
    lake.put_if_absent(certificate.path, certificate.raw)
    return certificate


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
    """Return whether matches in a file may stay: in tables that are always kept, and in rows of other runs."""
    if stay_reason(catalog, subject, matches):
        return True
    columns = {where for where in matches.counts if where.startswith("column ")}
    return subject.run is not None and columns == set(matches.counts) and "column run" not in columns


def _keys(lake: "Lake") -> dict[str, Any]:
    """Return the columns that are stored under keys of subjects, and the places that store keys."""
    store = key_store(lake)
    places = [] if store is None else [place.uri for place in store.places]
    return {"columns": sorted(known_columns(lake.store)), "places": places}


def _steps(tables: "Tables", erasure: Erasure) -> Iterable[Step]:
    rows = recorded_actions(tables, ERASURES).get(erasure.name, {})
    return sorted((step for steps in rows.values() for step in steps), key=lambda step: step.seq)


def _step(step: Step) -> dict[str, Any]:
    return {**step.row, "ts": step.ts.isoformat(), "details": dict(step.details)}


def _files(store: "Store", erasure: Erasure) -> dict[str, Any]:
    """Return the removed and added files of tables with rows and bytes, and the current versions of the tables."""
    plan = read_plan(store, erasure.plan) if erasure.plan is not None else None
    body = plan.body if plan is not None else {"remove": {}, "add": [], "facts": {}}
    tables = sorted({*body["remove"], *(row["table"] for row in body["add"])})
    handles = {table: delta_table(store, table) for table in tables}
    removed = [
        {"table": table, "path": row["path"], "rows": row["num_records"], "bytes": row["size_bytes"]}
        for table, rows in body["remove"].items()
        for row in rows
    ]
    added = [
        {"table": row["table"], "path": row["path"], "rows": row["rows"], "bytes": row["size_bytes"]}
        for row in body["add"]
    ]
    by_table = body["facts"].get(QUARANTINED, {}).values()
    raw = [digest for by_date in by_table for digests in by_date.values() for digest in digests]
    versions = {table: handle.version() for table, handle in handles.items() if handle is not None}
    return {"removed": removed, "added": added, "raw_bytes_removed": sorted(raw), "table_versions": versions}


def _trace_facts(trace: Any) -> dict[str, Any]:  # noqa: ANN401 - a trace
    return {"place": trace.place, "where": trace.where, "files": trace.files, "count": trace.count}


def _iso(day: date | None) -> str | None:
    return None if day is None else day.isoformat()


Faults = list[str]


def verify_alone(certificate: Certificate, name: str) -> Faults:
    """Return the faults of a certificate that its content alone shows.

    Parameters
    ----------
    name
        The digest in the file's name; empty if unknown.
    """
    facts = certificate.facts
    try:
        items = [Item(**{**fact, "partition_date": _date(fact["partition_date"])}) for fact in facts["items"]]
        steps = list(_listed_steps(facts))
        search, erasure, digest = facts["search"], facts["erasure"], facts["items_sha256"]
        is_clean, matches = search["is_clean"], search["found"]
    except (KeyError, TypeError, ValueError):
        return ["it lacks what every certificate has"]
    approvers = {normalize_name(step.actor) for step in steps if step.action == ERASURES.approve}
    appliers = {normalize_name(step.actor) for step in steps if step.action == ERASURES.begin}
    alone = any(step.details.get("single_operator") for step in steps)
    rules = {
        "its bytes do not have the digest of its name": bool(name) and certificate.name != name,
        "its items are not those that its name stands for": Erasure.of_items(items).name != erasure,
        "its items do not have the digest that was approved": digest_of(asdict(item) for item in items) != digest,
        "it says that nothing was left, and what": bool(is_clean) == bool(matches),
        "something was left": not is_clean,
        "nobody approved it": not approvers,
        "nobody applied it": not appliers or facts.get("plan") is None,
        "whoever approved it applied it": bool(approvers) and approvers <= appliers and not alone,
        "what was approved had other items": any(step.details.get(DIGEST, digest) != digest for step in steps),
    }
    return [text for text, is_broken in rules.items() if is_broken]


def verify_signatures(certificate: Certificate, signers_file: str) -> Faults:
    """Return the faults of the signatures for propose, approve and apply, by a file of allowed signers."""
    signers = load_signers(signers_file)
    signed_actions = (ERASURES.propose, ERASURES.approve, ERASURES.begin)
    return [
        f"row {step.seq} of the audit log ({step.action}): {fault}"
        for step in _listed_steps(certificate.facts)
        if step.action in signed_actions and (fault := _signature_fault(step, signers))
    ]


def verify_with_lake(certificate: Certificate, lake: "Lake") -> Faults:
    """Return where a certificate contradicts a lake: identity, audit log, audit rows, files that must be deleted."""
    facts = certificate.facts
    proof = prove(lake)
    rows = trail(lake.tables)
    recorded = {(row["seq"], row["action"], row["actor"]) for row in rows}
    certified = [row for row in rows if row["action"] == CERTIFIED and certificate.name in (row["details"] or "")]
    existing = [
        fact["path"]
        for fact in facts["files"]["removed"]
        if lake.fs.exists(lake.path("tables", fact["table"], fact["path"]))
    ]
    listed = {(step["seq"], step["action"], step["actor"]) for step in facts["steps"]}
    rules = {
        "it is of another lake": lake_identity(lake.store) != facts["lake"],
        f"the audit log is broken: {proof.why}": not proof.whole,
        "the audit log does not know it": not certified,
        "the audit log has other steps": not listed <= recorded,
        f"{len(existing)} files that went are there": bool(existing),
    }
    return [text for text, is_broken in rules.items() if is_broken]


def _date(text: str | None) -> date | None:
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
