"""A credential that is given in every place that is recorded is in no byte of what is kept."""

import gc
import json
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from ranklake.capture.recover import recover
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.quality.check import run_checks
from tests.support.bringing import adds_up, bring

TOKEN = "q8Zr3xKpW1vT6yLmN4cJ9sHd2fGb7aQe"
"""Of no known shape: what finds it finds those of known shapes, too (tests/lake/test_redact.py)."""
KEY = "0123456789abcdef9a6656c90bd5482a90a29b9f"
"""Looks like a commit: it is known for a secret by the environment alone."""

TRAINING = """
import os, sys
from ranklake import capture

token = os.environ["HF_TOKEN"]
config = {"model": {"api_key": token, "url": f"https://user:{token}@example.org/m"}, token: 1, "note": f"see {token}"}
run = capture.start(job="job " + token, run="run-" + token, local_dir=sys.argv[1], spool=sys.argv[2], config=config,
                    labels={"by": token}, injected=token)
with run.step(0):
    with run.phase("phase " + token):
        run.log(loss=1.0)
run.log({"metric/" + token: 1.0})
run.scalar("scalar/" + token).add(2.0)
run.aggregate("aggregate/" + token, every_s=1).add(2.0)
run.histogram("histogram/" + token).record([1.0, 2.0])
run.counter("counter/" + token, unit="By").add(5)
key = os.environ["WANDB_API_KEY"]
run.event("known", message="logged in with " + key, place=f"/tmp/{key}/x", said=[{"by": key}])
run.log({"metric/" + key: 1.0})
run.event("event " + token, message=f"failed with {token}", token=token, where=[{"deep": token}], url=f"https://{token}@h/x")
import logging
logger = logging.getLogger("planted." + token)
logger.addHandler(run.log_handler())
logger.warning("denied: %s", token, extra={"header": token, "deep": {"x": token}})
try:
    raise PermissionError(f"Authorization: Bearer {token}")
except PermissionError:
    logger.exception("no access with %s", key, extra={"used": key})
#ASSETS
from pathlib import Path
folder = Path(sys.argv[1]).parent / ("data-" + token)
folder.mkdir()
(folder / token).write_text("x")
(folder / ("broken-" + token)).symlink_to("nowhere")
run.dataset("data " + token, f"https://user:{token}@127.0.0.1:9/x?X-Amz-Signature={token}", split=token, note=token)
run.dataset("local", folder, version=token, tokenizer=token, preprocessing={"key": token}, wait=True)
run.artifact("model " + token, folder / token, media_type=token, wait=True)
with run.checkpoint(folder / ("step-" + token), step=1, tag="best " + key, tag_metric=token) as place:
    place.write_text("x")
try:
    with run.step(1):
        raise RuntimeError(f"401 for Bearer {token}")
except RuntimeError:
    pass
try:
    with run:
        raise ValueError(f"no access with token={token}, or {key}")
except ValueError:
    pass
"""


def git(folder, *arguments):
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


def bytes_of(folder):
    """Yield each file's bytes, and its columns' values if it is a Parquet file."""
    for file in folder.rglob("*"):
        if file.is_file():
            raw = file.read_bytes()
            yield file, raw
            if raw[:4] == b"PAR1":
                table = pq.read_table(file)
                yield file, json.dumps(table.to_pydict(), default=str).encode()
                yield file, repr(table.schema.metadata).encode()


def holds_one(raw):
    """Say whether bytes hold one of the planted secrets."""
    return TOKEN.encode() in raw or KEY.encode() in raw


@pytest.mark.slow
def test_a_planted_token_is_nowhere(tmp_path):
    """Not in the local spool, the spool, the tables, their logs, the checks' results nor the rollups."""
    token = TOKEN
    code = tmp_path / "code"
    code.mkdir()
    git(code, "init", "-q", "-b", "trunk")
    script = code / "train.py"
    script.write_text("x = 1\n")
    git(code, "add", ".")
    git(code, "commit", "-qm", "first")
    git(code, "remote", "add", "origin", f"https://oauth2:{token}@example.org/team/code.git")
    script.write_text(TRAINING + f'\nsecret = "{token}"\n# curl -H "X-Key: {token}"\n# {KEY}\n')
    local, spool, lake_folder = tmp_path / "local", tmp_path / "spool", tmp_path / "lake"
    command = [
        sys.executable,
        str(script),
        str(local),
        str(spool),
        "--api-key",
        token,
        f"--hub={token}",
        f"db.token={token}",
    ]
    environment = os.environ | {
        "HF_TOKEN": token,
        "WANDB_API_KEY": KEY,
        "NCCL_IB_HCA": token,
        "SLURM_JOB_PARTITION": token,
    }
    # Killed before it uploads, once: what a dead process leaves is looked at as well.
    killed = script.read_text().replace("#ASSETS", "os.kill(os.getpid(), 9)")
    (code / "killed.py").write_text(killed)
    died = subprocess.run(
        [command[0], str(code / "killed.py"), *command[2:]], env=environment, cwd=code, check=False, timeout=120
    )
    assert died.returncode == -9
    assert list(local.rglob("*.open"))
    assert [file for file, raw in bytes_of(local) if holds_one(raw)] == []

    done = subprocess.run(command, env=environment, cwd=code, check=False, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # The run looks after what the dead one left, but ends while it does so on a busy machine.
    left = recover(local, spool)
    assert (left.left, left.troubles) == (0, ())
    lake = Lake.create(str(lake_folder))
    bring(lake, spool)
    run_checks(lake)
    run_rollups(lake)
    adds_up(lake, spool)
    known = query(lake, "SELECT message FROM events WHERE event = 'known'").to_pylist()
    assert {row["message"] for row in known} == {"logged in with [redacted]"}
    (row,) = query(lake, "SELECT * FROM runs WHERE git_commit IS NOT NULL").to_pylist()[-1:]
    assert row["git_remote"] == "https://example.org/team/code.git"
    assert "+run = capture.start" in row["git_patch"]
    searched = [(file, raw) for folder in (local, spool, lake_folder) for file, raw in bytes_of(folder)]
    assert len(searched) > 30
    assert query(lake, "SELECT count(*) n FROM logs").to_pylist()[0]["n"] >= 2
    assert any(b"[redacted]" in raw for _, raw in searched)
    assert [file for file, raw in searched if holds_one(raw)] == []
    gc.collect()
