"""Forged rows of the registers of proposals: what was proposed, approved and applied, and whose rows the audit log has.

Whoever may write to the bucket may put rows there that no command wrote, under a name with the digest that goes with
them, and name them in the table's log.
"""

import hashlib
import io
import json

import pyarrow.parquet as pq
from begun import FORGERIES
from loose import loose

TABLES = ("audit", "erasures", "quality_releases", "retention_plans", "ingest_plans")
LAKES = ("release", "release of segments", "retention", "erasure")
"""Lakes, as `begun` makes them, in which somebody proposed, approved and applies."""


def forge(rng, lake, outside):
    """Put other rows into the place of those of a register."""
    logs = sorted(path for table in TABLES for path in (lake / "tables" / table / "_delta_log").glob("*.json"))
    path = rng.choice([path for path in logs if '"add"' in path.read_text()])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    entry = next(line["add"] for line in lines if "add" in line)
    folder = path.parent.parent
    rows = loose(pq.read_table(folder / entry["path"], partitioning=None))
    for _ in range(rng.choice([1, 1, 3])):
        if len(set(rows.column_names)) == rows.num_columns:
            rows = rng.choice(FORGERIES)(rng, rows)
    sink = io.BytesIO()
    pq.write_table(rows, sink)
    raw = sink.getvalue()
    begin, _, end = entry["path"].rpartition("-")
    entry["path"] = f"{begin}-{hashlib.sha256(raw).hexdigest()}{end[64:]}"
    (folder / entry["path"]).write_bytes(raw)
    stats = json.loads(entry["stats"]) | {"numRecords": len(rows)}
    entry |= {"size": len(raw), "stats": json.dumps({"numRecords": stats["numRecords"]})}
    path.write_text("\n".join(json.dumps(line) for line in lines))
