"""What commands write for a role: no planted value is in any byte of it, nor of what they say and note."""

import gzip
import random
import re
import string
from datetime import timedelta

import click
import pyarrow.parquet as pq
import pytest
from random_roles import NEW, OLD, keyring
from rollup_inputs import NOON, append
from ui_client import addresses, asking, context_of

from ranklake.cli import cli, run
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.query.role_file import load_role
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import MaskingSection

ROLES = """
roles:
  reader:
    classes: [operational]
    masked: [pseudonymous, personal]
    tables: [TABLES]
    runs: "run <> 'secret-run'"
""".replace("TABLES", ", ".join(load_contracts()))
WRITES = {"output", "out"}
EXPORTS = {
    "sql": [
        [
            "sql",
            'SELECT r."user", r.host, r.git_branch, j.comment FROM runs r JOIN jobs j ON r."user" = j."user"',
            "--output",
            "OUT/rows.parquet",
        ],
        ["sql", "SELECT * FROM logs", "--output", "OUT/rows.csv"],
        ["sql", "SELECT * FROM annotations", "--out", "OUT/rows.json"],
    ],
    "media": [["media", "r0", "sample", "--output", "OUT/sample.txt"]],
    "plot": [["plot", "r0", "loss", "--output", "OUT/curve.svg", "--with", "r1"]],
    "trace": [["trace", "r0", "--step", "0", "--output", "OUT/step.json.gz"]],
    "otlp": [["otlp", "r0", "--messages", "--output", "OUT/r0.jsonl"]],
    "report": [["report", "runs", "cluster", "executive", "--out", "OUT/site"], ["report", "--out", "OUT/all"]],
    "compare": [["compare", "r0", "r1", "--page", "--out", "OUT/compared"]],
}
"""Commands that write files and take a role, by name; another one fails a test below until it is here."""
SERVES = {"ui"}
"""Commands that serve a role, whose addresses a test below asks for."""
SAYS = [
    *(["show", "r0"], ["show", "r0", "--json"], ["runs"], ["runs", "--json"], ["compare", "r0", "r1", "--json"]),
    *(["incidents", "list"], ["incidents", "list", "--json"], ["incidents", "show", "inc0"]),
    *(["incidents", "show", "inc0", "--json"], ["incidents", "show", "inc0", "--markdown"]),
    *(["audit", "show"], ["audit", "list", "--json"], ["audit", "export"]),
    *(["slo"], ["slo", "--json"], ["alerts", "list"], ["alerts", "list", "--history", "--json"]),
    *(["lineage", "runs.user", "--forward"], ["lineage", "runs.user", "--forward", "--json"]),
]


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Give a lake in which every classified text of two runs is planted, and those of a third, which is hidden."""
    folder, chance = tmp_path_factory.mktemp("planted"), random.Random(21)
    texts = []

    def text():
        texts.append("".join(chance.choices(string.ascii_lowercase, k=14)))
        return texts[-1]

    lake = Lake.create(str(folder / "lake"))
    rows = {
        name: [] for name in ("runs", "jobs", "steps", "spans", "logs", "ranks", "annotations", "gpu_samples", "media")
    }
    for n, name in enumerate(("r0", "r1", "secret-run")):
        user, host = text(), text()
        mail = f"{text()}@example.org"
        of = {"run": name, "incarnation": n + 1}
        rows["runs"].append({**of, "ts": NOON, "job": "j", "user": user, "host": host, "git_branch": text(),
                             "git_patch": text(), "command_line": f"train --mail {mail}", "world_size": 1})  # fmt: skip
        rows["jobs"].append({**of, "ts": NOON, "job_id": f"j{n}", "user": user, "state": "COMPLETED",
                             "comment": f"ask {mail}", "work_dir": f"/home/{text()}"})  # fmt: skip
        rows["ranks"].append({**of, "ts": NOON, "host": host})
        rows["gpu_samples"].append({**of, "ts": NOON, "host": host, "device_index": 0, "device_uuid": f"GPU-{n}"})
        rows["annotations"].append({**of, "ts": NOON, "kind": "note", "text": f"by {mail}", "author": user})
        rows["media"].append({**of, "ts": NOON, "name": "sample", "kind": "text", "media_type": "text/plain", "step": 0,
                              "caption": f"by {mail}", "personal_text": f"said {mail}"})  # fmt: skip
        rows["logs"].append({**of, "ts": NOON, "message": f"mail {mail}", "severity_number": 9, "step": 0})
        for step in range(5):
            ts = NOON + timedelta(seconds=step)
            rows["steps"].append({**of, "ts": ts, "step": step, "step_time_s": 1.0, "loss": 1.0 / (step + 1),
                                  "slot": step})  # fmt: skip
            rows["spans"].append(
                {
                    **of,
                    "ts": ts,
                    "step": step,
                    "name": "forward",
                    "kind": "phase",
                    "duration_ns": 5,
                    "span_id": step + 1,
                    "slot": step,
                }
            )
    for table, given in rows.items():
        append(lake, table, given)
    run_rollups(lake)
    append(lake, "incidents", [
        {"incident_id": f"inc{n}", "kind": "run_failed", "severity": "error", "title": "it failed", "run": row["run"],
         "host": row["host"], "start_ts": NOON, "last_ts": NOON, "detected_ts": NOON, "findings": 1, "status": "open",
         "causes": "[]", "detectors": "{}", "evidence": "[]", "date": NOON.date()}
        for n, row in enumerate(rows["runs"])
    ])  # fmt: skip
    return lake.configured(masking=MaskingSection(keyring(folder, NEW, OLD))), texts, keyring(folder, NEW, OLD)


def with_role(command, before=()):
    """Yield the names of commands that take a role, each with its options."""
    context = click.Context(command)
    for name in command.list_commands(context):
        one = command.get_command(context, name)
        if isinstance(one, click.Group):
            yield from with_role(one, (*before, name))
        elif any(option.name == "role" and "--role" in option.opts for option in one.params):
            yield " ".join((*before, name)), {option.name for option in one.params}


def test_every_command_that_writes_for_a_role_is_tried():
    """A new export for roles has to be among those that are looked through."""
    found = dict(with_role(cli))
    assert {name for name, options in found.items() if options & WRITES} == set(EXPORTS)
    said = {name for name in found if any(words[: len(name.split())] == name.split() for words in SAYS)}
    assert set(found) == said | set(EXPORTS) | SERVES


@pytest.mark.slow
@pytest.mark.leaky("a client keeps its event loop")
def test_no_planted_value_is_at_any_address_that_is_served_to_a_role(planted, tmp_path):
    """Masks and row filters hold on every page that the server has, for the role and for who sees all."""
    lake, texts, keys = planted
    (tmp_path / "roles.yaml").write_text(ROLES)
    role = load_role(tmp_path / "roles.yaml", "reader", lake.contracts())
    context = context_of(lake, **{"masking.key": keys, "sql.roles": str(tmp_path / "roles.yaml")})
    with asking(lake, context=context) as client:
        everything = addresses(client)
    with asking(lake, role, context=context) as client:
        answers = [client.get(f"/{path}") for path in everything] + list(addresses(client).values())
    seen = "".join(f"{answer.headers}{answer.text}" for answer in answers)
    assert "r0" in seen
    assert [text for text in texts if text in seen] == []
    assert "secret-run" not in seen


@pytest.mark.slow
@pytest.mark.leaky("the drawing library keeps its files open")
def test_no_planted_value_is_in_what_is_written_for_a_role(planted, tmp_path, monkeypatch, capsys):
    """Files, their metadata, names, what is printed, the query log."""
    lake, texts, keys = planted
    monkeypatch.chdir(tmp_path)
    (tmp_path / "roles.yaml").write_text(ROLES)
    (tmp_path / "ranklake.toml").write_text(
        f'[lake]\nuri = "{lake.uri}"\n[sql]\nroles = "roles.yaml"\n[masking]\nkey = "{keys}"\n'
    )
    out = tmp_path / "out"
    out.mkdir()
    for words in [*(one for some in EXPORTS.values() for one in some), *SAYS]:
        assert run([word.replace("OUT", str(out)) for word in words] + ["--role", "reader"]) == 0, words
    said = capsys.readouterr()
    seen = bytearray((said.out + said.err).encode())
    written = [path for path in out.rglob("*") if path.is_file()]
    assert len(written) > sum(map(len, EXPORTS.values())) - 1
    for path in [*written, *(path for path in (tmp_path / "lake" / "queries").rglob("*") if path.is_file())]:
        seen += str(path).encode() + path.read_bytes()
        if path.suffix == ".parquet":
            seen += str(pq.read_table(path).to_pydict()).encode() + str(pq.read_metadata(path).to_dict()).encode()
        if path.suffix == ".gz":
            seen += gzip.decompress(path.read_bytes())
    assert not set(re.findall(rb"[a-z]{14}", bytes(seen))) & {text.encode() for text in texts}
    assert b"secret-run" not in seen
    assert b"p-" in seen
