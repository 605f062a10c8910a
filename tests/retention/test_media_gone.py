"""Media end to end: recorded by the capture library, shown on a page, erased from every byte, deleted by a policy."""

import base64
import json
import struct
import zlib
from datetime import date, timedelta

import numpy as np
import pyarrow.parquet as pq
import pytest
from archiving import policies_in
from retaining import agree, carry_out, plan, set_forward

from ranklake import capture
from ranklake.capture.assets.image_file import png
from ranklake.cli import run
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.rollups.runner import run_rollups
from ranklake.retention.erasure.apply import apply, approve
from ranklake.retention.erasure.plan import make_plan, propose
from ranklake.retention.erasure.search import search
from ranklake.retention.erasure.subject import Reach, subject_of

ADA, OTHER = "ada@analytical.example", "grace@navy.example"
SHOWN = [*(f"image/{shift}" for shift in range(3)), "packed", "table", "text", "caption", "plot", "matrix"]
ROLE = {"classes": ["operational", "pseudonymous", "personal"], "tables": sorted(load_contracts())}


def commented(text, packed=False):
    """Return a PNG with a comment, as plotting libraries write it: as it is, or compressed, which is not kept."""
    raw = png(np.random.default_rng(0).random((6, 6))).raw
    data = b"Comment\0" + (b"\0" + zlib.compress(text.encode()) if packed else text.encode())
    name = b"zTXt" if packed else b"tEXt"
    chunk = struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    return raw[:33] + chunk + raw[33:]


def recorded(site, run_name, *, mail):
    """Record a run that shows an image, a table and texts, one of which names somebody, and made a file; ingest it."""
    made = site.folder / f"{run_name}.bin"
    made.write_bytes(b"weights")
    with capture.start(
        job="job", run=run_name, spool=site.spool, local_dir=site.folder / f"local-{run_name}", announce="off"
    ) as recording:
        with recording.step(0):
            recording.log(loss=1.0)
        for shift in range(3):  # base64 writes the same bytes in three ways
            recording.media(f"image/{shift}", commented(" " * shift + mail))
        recording.media("packed", commented(mail, packed=True))
        recording.media("table", [{"who": mail, "score": 0.5}, {"who": "nobody", "score": 1.0}])
        recording.media("text", f"written by {mail}", caption="a sample")
        recording.media("caption", "nothing", caption=f"for {mail}")
        recording.media("plot", np.eye(4), personal=False)
        recording.media("matrix", [[3, 1], [0, 4]], kind="confusion_matrix", labels=["cat", "dog"])
        recording.artifact("weights", made, wait=True)
        recording.rows.media._background.drain(60)
        assert recording.gaps() == {}
    ingest(site.lake, Spool(str(site.spool)), InProcess())


def names(site):
    """Return the names of media that are stored."""
    return sorted(row["name"] for row in site.rows("media"))


def holding(folder, value):
    """Return files in which a value stands, in plain bytes, in base64, or in a column of Parquet."""
    plain = value.encode()
    forms = {base64.b64encode(b"\0" * shift + plain)[4 if shift else 0 : -4] for shift in range(3)} | {plain}
    found = []
    for path in folder.rglob("*"):
        if path.is_file():
            raw = path.read_bytes()
            if raw[:4] == b"PAR1":
                raw += json.dumps(pq.ParquetFile(path).read().to_pydict(), default=str).encode()
            found += [path] if any(form in raw for form in forms) else []
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.leaky("V8 keeps the files that it unpacks itself from")
def test_who_is_shown_is_erased_from_every_byte(site, monkeypatch):
    """Images by what is written into them, tables and texts by their cells and words; what names nobody stays."""
    recorded(site, "r1", mail=ADA)
    recorded(site, "r2", mail=OTHER)
    run_rollups(site.lake)
    (site.folder / "roles.yaml").write_text(json.dumps({"roles": {"all": ROLE}}))
    pages = site.folder / "pages"
    (site.folder / "ranklake.toml").write_text('[sql]\nroles = "roles.yaml"\n')
    monkeypatch.chdir(site.folder)
    assert run(["report", "--out", str(pages), "--lake", site.lake.uri, "--role", "all"]) == 0
    assert {path.parts[len(site.folder.parts)] for path in holding(site.folder, ADA)} >= {"lake", "spool", "pages"}
    reach = Reach(site.lake, Spool(str(site.spool)), (pages,))
    subject = subject_of(site.lake, [ADA])
    made = make_plan(reach, subject)
    propose(site.lake, made, "Petra Proposer")
    approve(site.lake, made.name, "Ada Approver", "as asked")
    done = apply(reach, made.name, subject, "Otto Operator")
    assert done.certificate.is_clean
    assert holding(site.folder, ADA) == []
    assert search(site.lake, Spool(str(site.spool)), [ADA], [pages]).traces == ()
    assert names(site) == sorted([*SHOWN, "packed", "plot", "matrix"])
    assert len(holding(site.folder / "lake", OTHER)) >= 1
    assert sum(len(item.faults) for item in balance(site.lake, Spool(str(site.spool)).listing())) == 0


@pytest.mark.slow
def test_a_policy_deletes_media_and_keeps_artifacts(site, monkeypatch):
    """After so many days, by their table; the rows of what was made stay, and the books add up."""
    recorded(site, "r1", mail=ADA)
    rule = "shown: {where: {table: media}, delete_after_days: 30, reason: nobody compares them any longer}"
    found = policies_in(site.folder, rule)
    today = date.fromisoformat(str(max(row["date"] for row in site.rows("media"))))
    assert plan(site, today + timedelta(days=29), found) is None
    set_forward(monkeypatch, 40)
    later = today + timedelta(days=40)
    due = plan(site, later, found)
    assert {one.table for one in due.items} == {"media"}
    agree(site, due.name)
    carry_out(site, due.name, later, found)
    assert names(site) == []
    assert [row["name"] for row in site.rows("artifacts")] == ["weights"]
    assert len(site.rows("steps")) == 1
    assert site.balances()["media"].retired == 9
