"""Lakes of which some columns are under keys of people, and an erasure by two."""

import json
import os

from governed import any_rows
from segments import put_segment

from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake_config import SubjectsSection
from ranklake.retention.erasure.apply import apply, approve
from ranklake.retention.erasure.plan import make_plan, propose
from ranklake.retention.erasure.subject import Reach, subject_of
from ranklake.retention.subjects.store import KeyStore

COLUMNS = ("runs.user", "runs.command_line by user")
CLEAR = 'SELECT run, unsealed("user") AS who, unsealed(command_line) AS line FROM runs ORDER BY run'


def section(folder, *, copies=0, columns=COLUMNS, clear=()):
    """Return a configuration with keys in a folder, made where there are none."""
    wrap = folder / "wrap.keys"
    if not wrap.exists():
        wrap.write_text(os.urandom(32).hex())
    places = tuple(str(folder / f"copy{at}") for at in range(copies))
    return SubjectsSection(str(folder / "keys"), places, f"file:{wrap}", columns, clear)


def users(site, *who, first=1):
    """Ingest a run of each of some people; return the segments."""
    paths = []
    for number, name in enumerate(who, first):
        rows = any_rows(
            "runs", 1, run=f"exp-{number}", incarnation=number, user=[name], command_line=[f"train --for {name}"]
        )
        paths.append(put_segment(site.spool, rows, "runs"))
    ingest(site.lake, Spool(str(site.spool)), InProcess())
    return paths


def erased(site, *values, run_name=None, columns=(), folders=()):
    """Have a person erased by two people; return what was done."""
    reach = Reach(site.lake, Spool(str(site.spool)), tuple(folders))
    subject = subject_of(site.lake, values, run_name, columns)
    made = make_plan(reach, subject)
    propose(site.lake, made, "Petra")
    approve(site.lake, made.name, "Anna")
    return apply(reach, made.name, subject, "Otto")


def config_of(site, folder):
    """Write the configuration of a site to a file; return its path."""
    said, path = site.lake.config.subjects, folder / "ranklake.toml"
    lines = [f'[lake]\nuri = "{site.lake.uri}"', f'[subjects]\nkeys = "{said.keys}"\nwrap = "{said.wrap}"']
    path.write_text("\n".join([*lines, f"columns = {json.dumps(said.columns)}", ""]))
    return str(path)


def sealed_of(site, who):
    """Return what the lake stores in the place of a person's name."""
    return KeyStore(site.lake).find(who).seal(who)


__all__ = ["CLEAR", "COLUMNS", "config_of", "erased", "sealed_of", "section", "users"]
