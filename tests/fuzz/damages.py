"""Damage to what a lake writes for itself: plans, log entries, hints, its marker and overlays, each from a seed.

A kind is a function of dice, the lake's folder and a folder outside that nobody may touch. It changes one file, as rot,
a hand or a thief of the bucket's keys would.
"""

import json

import begun
import forged_overlays
import registers
from mutations import odd
from plan_files import all_plans, write_plan

from ranklake.lake.plans import kinds

FORGED = ("add", "remove", "segments", "purge", "kept", "account", "versions")


def plan_bytes(rng, lake, outside):
    """Leave a plan file some of whose bytes were changed or are gone."""
    _bytes(rng, rng.choice(all_plans(lake)))


def plan_values(rng, lake, outside):
    """Leave a plan with other values, and the digest that goes with them."""
    path = rng.choice(all_plans(lake)[-2:])
    facts = json.loads(path.read_bytes())
    facts.pop("sha256", None)
    where = rng.choice([facts, *[row for key in ("segments", "add") for row in facts.get(key, [])[:2]]])
    where[rng.choice(sorted(where))] = odd(rng)
    write_plan(path, facts)


def plan_forged(rng, lake, outside):
    """Leave a next plan that nobody composed: paths that lead out of the lake, tables that are none."""
    paths = [
        f"../../../{outside.name}/canary",
        str(outside / "canary"),
        f"date=2026-03-01/../../../../{outside.name}/canary",
        "date=2026-03-01/none.parquet",
        "",
        "..",
        "_delta_log/00000000000000000000.json",
    ]
    number = len(all_plans(lake)) + 1
    table = rng.choice(["steps", "segments", "../steps", "audit", "x", "ingest_plans"])
    path = rng.choice(paths)
    removed = {"path": path, "size_bytes": 5, "num_records": rng.choice([0, 1, -1, 2**62]), "date": "2026-03-01"}
    added = {"table": table, "path": path, "partition": "2026-03-01", "rows": 1, "size_bytes": 5, "stats": "{}"}
    facts = {"format": 1, "plan": number, "created_us": 1_700_000_000_000_000, "writer": "fuzz"}
    if rng.random() < 0.3:
        segment = {"path": path, "others": [str(outside / "canary")], "table": "steps", "bytes": 1, "rows": 1}
        segment |= {"sha256": "0" * 64, "seen": rng.choice(["", "0..99", "x"])}
        facts |= {
            "kind": "ingest",
            "spool": rng.choice([str(outside), str(lake / "../spool")]),
            "versions": {"steps": 0},
        }
        facts |= {"left": 0, "segments": [segment]}
    else:
        facts["kind"] = rng.choice(sorted(kinds.KINDS))
        facts |= {"add": [added] * rng.randrange(2), "remove": {table: [removed] * rng.randrange(1, 3)}}
        facts |= {"purge": rng.random() < 0.7, "kept": {table: []}, "account": {table: rng.choice([-1, 0, 2**70])}}
    if rng.random() < 0.3:
        facts[rng.choice(sorted(facts))] = odd(rng)
    write_plan(lake / "plans" / f"{number:010d}.json", facts)


def log_bytes(rng, lake, outside):
    """Leave a log entry or a checkpoint some of whose bytes were changed or are gone."""
    _bytes(rng, rng.choice(_logs(lake)))


def log_values(rng, lake, outside):
    """Leave a log entry with other values in one of its actions."""
    path = rng.choice([path for path in _logs(lake) if path.suffix == ".json"])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    action = rng.choice(lines)
    kind = rng.choice(sorted(action))
    body = action[kind]
    if isinstance(body, dict) and body and rng.random() < 0.9:
        key = rng.choice(sorted(body))
        values = {
            "path": [f"../../../{outside.name}/canary", str(outside / "canary"), "none", ""],
            "stats": ['{"numRecords": -5}', "{}", "[]", '{"numRecords": 1e400}', "", '{"numRecords": "x"}'],
            "partitionValues": [{}, {"date": "x"}, {"date": None}, {"date": "2026-03-01", "rank": "1"}],
            "size": [0, -1, 2**62],
            "schemaString": ["", "{}", json.dumps({"type": "struct", "fields": []})],
            "version": [-1, 10**6, 2**63 - 1],
        }.get(key, [])
        body[key] = rng.choice([*values, *values, odd(rng)])
    else:
        action[kind] = odd(rng)
    path.write_text("\n".join(json.dumps(line) for line in lines))


def log_paths(rng, lake, outside):
    """Leave a log entry whose data file lies elsewhere: by dots, a whole path, an address, escapes, another date."""
    entries = [path for path in _logs(lake) if path.suffix == ".json" and '"add"' in path.read_text()]
    path = rng.choice(entries)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    body = rng.choice([line["add"] for line in lines if "add" in line])
    day, name = body["path"].split("/")
    out = f"{outside.name}/canary"
    body["path"] = rng.choice(
        [
            f"../../../{out}",
            f"{day}/../../../../{out}",
            f"{day}/..%2f..%2f..%2f../{out}",
            f"{day}/%2e%2e/%2e%2e/%2e%2e/%2e%2e/{out}",
            str(outside / "canary"),
            (outside / "canary").as_uri(),
            f"https://example.org/{name}",
            f"../../../{lake.name}/tables/{path.parts[-3]}/{day}/{name}",
            f"date=1999-01-01/{name}",
            f"{day}/\n{name}",
            f"{day}/{name}\0",
            name,
        ]
    )
    path.write_text("\n".join(json.dumps(line) for line in lines))


def log_gone(rng, lake, outside):
    """Leave a log entry that is gone, that is another's, or that stands twice."""
    path, other = rng.sample([path for path in _logs(lake) if path.suffix == ".json"], 2)
    kind = rng.randrange(3)
    if kind == 0:
        path.unlink()
    elif kind == 1:
        path.write_bytes(other.read_bytes())
    else:
        path.with_name(f"{int(path.stem) + 1:020d}.json").write_bytes(path.read_bytes())


def hints(rng, lake, outside):
    """Leave the marker, the summaries and the hints of rounds."""
    folders = ("rounds", "known", "tallies")
    found = [path for folder in folders for path in sorted((lake / folder).rglob("*")) if path.is_file()]
    path = rng.choice([lake / "ranklake.json", *found])
    if path.suffix == ".json" and rng.random() < 0.6:
        path.write_text(json.dumps(odd(rng)))
    else:
        _bytes(rng, path)


def _bytes(rng, path):
    raw = bytearray(path.read_bytes())
    kind = rng.randrange(4)
    if kind == 0:
        raw = raw[: rng.randrange(len(raw))]
    elif kind == 1:
        raw = bytearray(b"<!DOCTYPE html><html><body>503</body></html>")
    elif kind == 2:
        raw = bytearray()
    else:
        for _ in range(rng.choice([1, 3, 20])):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
    path.write_bytes(bytes(raw))


def _logs(lake):
    return sorted(path for path in (lake / "tables").glob("*/_delta_log/*") if path.is_file())


KINDS = {
    "plan bytes": (plan_bytes, 3),
    "plan values": (plan_values, 4),
    "plan forged": (plan_forged, 5),
    "plan begun": (begun.forge, 6),
    "register": (registers.forge, 4),
    "log bytes": (log_bytes, 4),
    "log values": (log_values, 6),
    "log paths": (log_paths, 3),
    "log gone": (log_gone, 2),
    "hints": (hints, 2),
    "overlay": (forged_overlays.forge, 4),
}
"""What damages a lake, by name, and how often."""
