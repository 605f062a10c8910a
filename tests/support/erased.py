"""An erasure's parts, and one that people signed."""

from governed import any_rows
from segments import put_segment
from ssh_keys import Keys
from subjects import EMAIL, VALUES

from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.retention.erasure.apply import apply, approve
from ranklake.retention.erasure.plan import make_plan, propose
from ranklake.retention.erasure.subject import Reach, subject_of


def spool_of(site):
    """Return the spool as it is now."""
    return Spool(str(site.spool))


def reach(site, folders=()):
    """Return what an erasure reaches."""
    return Reach(site.lake, spool_of(site), tuple(folders))


def logs(site, *lines, run="shared", incarnation=50, segment=0):
    """Ingest lines of a log, one segment; return its path."""
    rows = any_rows("logs", len(lines), run=run, incarnation=incarnation, segment=segment, message=list(lines))
    path = put_segment(site.spool, rows, "logs")
    ingest(site.lake, spool_of(site), InProcess())
    return path


def signed_erasure(site, tmp_path):
    """Erase a person where approvals are signed; return the keys and the certificate."""
    keys = Keys(tmp_path / "keys")
    keys.allow("pia", "ada", "otto")
    site.lake = site.lake.configured(approvals=keys.section())
    logs(site, f"hello {EMAIL}", "hello")
    subject = subject_of(site.lake, VALUES)
    made = make_plan(reach(site), subject)
    propose(site.lake, made, **keys.by("pia"))
    approve(site.lake, made.name, **keys.by("ada"))
    return keys, apply(reach(site), made.name, subject, **keys.by("otto")).certificate
