"""Random tables and random roles over them, and what plain Python says that a role sees."""

import base64
import random
import string
from datetime import timedelta

from mask_oracle import mask
from rollup_inputs import NOON, append

from ranklake.lake.contracts.load import contract, load_contracts
from ranklake.lake.query.roles import Role
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import MaskingSection
from ranklake.masking.masks import Mask
from ranklake.segments.envelope import Key

OLD, NEW = Key(bytes(range(32))), Key(bytes(range(32, 64)))
KEYS = [(one.id, one.secret) for one in (OLD, NEW)]
MASKS = {
    "string": ["hash", "nullify", "keep:2", "keep:1+2", "keep:domain"],
    "int32": ["bucket:7", "bucket:10", "nullify"],
    "int64": ["bucket:3", "bucket:100", "nullify"],
    "float64": ["bucket:0.5", "bucket:10", "nullify"],
    "timestamp": ["truncate:year", "truncate:quarter", "truncate:month", "truncate:week", "truncate:hour", "nullify"],
    "int64_list": ["bucket:2", "nullify"],
}
ROWS = {  # conditions of roles, in SQL and in Python
    "true": lambda row: True,
    "run LIKE 'open%'": lambda row: row["run"].startswith("open"),
    "\"user\" <> 'ada'": lambda row: row["user"] is not None and row["user"] != "ada",
}
COLUMNS = {
    "runs": ["run", "user", "host", "git_branch", "git_patch", "cluster", "world_size", "param_count", "submitted_ts"],
    "jobs": ["run", "user", "work_dir", "cluster", "priority", "queue_time_s", "submit_ts", "gpu_count"],
    "cluster_hourly": ["hour", "scope", "cluster", "user", "gpu_utilization_counts", "node_count", "gpu_total_s"],
}
CONTRACTS = load_contracts()


def keyring(tmp_path, *keys):
    """Write a keyring, the newest first, and return the reference to it."""
    path = tmp_path / f"keys-{len(keys)}"
    path.write_text("\n".join(base64.b64encode(key.secret).decode() for key in keys))
    return f"file:{path}"


def people(chance):
    """Return a name as people, hosts and addresses have them, or none."""
    return chance.choice(["ada", "bo", "ada@example.org", "Ζωή", "node-017", "a", "", "o'neil", "x" * 40, None])


def facts(chance, table):
    """Return random rows of a table, each column of which may be NULL where it may be."""
    hour = NOON - timedelta(hours=chance.randrange(24 * 400))
    known = {
        "run": chance.choice(["open-1", "open-2", "closed"]),
        **{name: people(chance) for name in ("user", "host", "git_branch", "git_patch", "work_dir", "cluster")},
        **{name: chance.choice([None, 0, -1, -14, 7, 10, 4096, 10**9]) for name in ("world_size", "priority")},
        **{name: chance.choice([None, -(2**62), -1, 0, 99, 2**62]) for name in ("param_count", "gpu_count")},
        **{name: chance.choice([None, -0.25, 0.0, 3.7, 1e12]) for name in ("queue_time_s", "gpu_total_s")},
        **{name: chance.choice([None, hour]) for name in ("submitted_ts", "submit_ts")},
        "hour": hour,
        "end_ts": hour,
        "scope": "user",
        "scope_name": "x",
        "node_count": chance.randrange(50),
        "gpu_utilization_counts": chance.choice([None, [], [1, None, 5], [-3, 8]]),
    }
    needed = {"string": "x", "timestamp": NOON}
    row = {"ts": NOON, "date": NOON.date()}
    for one in contract(table).columns:
        if one.name in known or (one.required and one.id >= 20 and one.name not in row):
            value = known.get(one.name)
            row[one.name] = needed.get(one.type, 1) if one.required and value is None else value
    return row


def some_role(chance):
    """Return a random role, and how it sees each column by the plain rules: a mask, None for as it is; hidden ones not.

    The rules: a mask of a column goes before one of its class; a class that is masked comes by the contract.
    """
    classes = {one: chance.choice(["seen", "masked", "hidden"]) for one in ("operational", "pseudonymous", "personal")}
    classes["operational"] = chance.choice(["seen", "seen", "masked"])
    column_masks, seen = {}, {}
    for table, names in COLUMNS.items():
        for name in names:
            column = contract(table).column(name)
            if chance.random() < 0.25:
                said = chance.choice(MASKS[column.type])
                column_masks[table, column.id] = Mask.parse(said, "")
            elif classes[column.class_] == "hidden":
                continue
            elif classes[column.class_] == "seen":
                said = None
            else:
                said = column.mask or "nullify"
            in_grain = name in contract(table).grain
            if not (in_grain and said not in {None, "hash"}):
                seen.setdefault(table, {})[name] = said
    condition = chance.choice(sorted(ROWS))
    where = dict.fromkeys(("runs", "jobs"), condition)
    of = {kind: frozenset(one for one, how in classes.items() if how == kind) for kind in ("seen", "masked")}
    role = Role("r", of["seen"], frozenset(seen), where, masked=of["masked"], column_masks=column_masks)
    return role, seen, ROWS[condition]


def views_of(stored, seen, is_seen):
    """Return the rows that a role sees of stored rows by table, filtered, then masked; tables without any are absent.

    `seen` and `is_seen` are what `some_role` gives.
    """
    views = {
        table: [
            {name: row.get(name) if said is None else mask(row.get(name), said, KEYS) for name, said in how.items()}
            for row in stored[table]
            if table == "cluster_hourly" or is_seen(row)
        ]
        for table, how in seen.items()
    }
    return {table: given for table, given in views.items() if given}


def planted_lake(folder):
    """Return a lake of 2,500 jobs and runs each with values that exist nowhere else, their texts, and its keyring."""
    chance = random.Random(20)
    texts = ["".join(chance.choices(string.ascii_lowercase, k=14)) for _ in range(10_000)]
    lake = Lake.create(str(folder / "lake"))
    of = [texts[place::4] for place in range(4)]
    append(
        lake,
        "jobs",
        [
            {
                "ts": NOON,
                "job_id": f"j{n}",
                "user": user,
                "comment": f"ask {mail}@example.org of /home/{mail}/x",
                "slot": n,
            }
            | {"state": "COMPLETED", "gpu_count": n % 9, "work_dir": f"/home/{work}"}
            for n, (user, mail, work) in enumerate(zip(*of[:3], strict=True))
        ],
    )
    append(
        lake,
        "runs",
        [
            {"ts": NOON, "run": f"r{n}", "job": f"j{n}", "user": user, "host": host, "slot": n, "world_size": 8}
            for n, (user, host) in enumerate(zip(of[0], of[3], strict=True))
        ],
    )
    return lake.configured(masking=MaskingSection(keyring(folder, NEW, OLD))), texts, keyring(folder, NEW, OLD)
