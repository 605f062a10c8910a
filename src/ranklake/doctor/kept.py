"""Probe for old versions of deleted objects in buckets: no deletion by path reaches them."""

from collections.abc import Iterator

from ranklake.context import Context
from ranklake.doctor.examination import Patient
from ranklake.doctor.finding import Finding, not_known, ok, warning
from ranklake.lake.store.files import keeps_versions, lock_of_bucket
from ranklake.redaction.redact import redact_uri


def versions(patient: Patient) -> Iterator[Finding]:
    """Report whether the buckets of lake and spool keep versions, and whether they lock them."""
    context = Context.of(patient.config)
    lake = context.open_lake()
    places = [(lake.fs, lake.store.root, redact_uri(lake.uri))]
    if context.has_spool:
        spool = context.spool()
        places += [(item.fs, item.root, redact_uri(item.uri)) for item in (spool, spool.fallback) if item is not None]
    for fs, root, shown in places:
        yield of_bucket(fs, root, shown)


def of_bucket(fs: object, root: str, shown: str) -> Finding:
    """Return the finding about deleted objects of one bucket."""
    keeps = keeps_versions(fs, root)
    if keeps is None:
        return not_known(f"whether the store keeps versions of deleted objects: {shown}", "ask whoever runs it")
    if not keeps:
        return ok(f"{shown}: what is deleted is gone")
    if lock := lock_of_bucket(fs, root):
        message = f"{shown}: the bucket locks {lock}: retention and erasures delete nothing there before"
        return warning(
            message, "agree with whoever answers for the policies; certificates say what stays, and until when"
        )
    message = f"{shown}: the bucket keeps versions of deleted objects; retention and erasures delete them, too"
    return ok(f"{message}, with s3:ListBucketVersions and s3:DeleteObjectVersion")
